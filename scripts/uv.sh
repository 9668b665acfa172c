# Sets UV to a uv that works: the one on PATH, one that pip has installed, or a fresh one in .uv/.
if command -v uv >/dev/null 2>&1; then
  UV=(uv)
elif python3 -m uv --version >/dev/null 2>&1; then
  UV=(python3 -m uv)
else
  [ -x .uv/bin/uv ] || { python3 -m venv .uv && .uv/bin/python -m pip install --quiet uv; }
  UV=(.uv/bin/uv)
fi
