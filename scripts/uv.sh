# Sets UV to a uv that is new enough: the one on PATH, one that pip has installed, or a fresh one in .uv/.
new_enough() { "$@" --version 2>/dev/null | awk '{ split($2, v, "."); exit !(v[1] > 0 || v[2] >= 9) }'; }
if command -v uv >/dev/null 2>&1 && new_enough uv; then
  UV=(uv)
elif python3 -m uv --version >/dev/null 2>&1 && new_enough python3 -m uv; then
  UV=(python3 -m uv)
else
  UV=("$PWD/.uv/bin/uv")
  [ -x "${UV[0]}" ] || { python3 -m venv .uv && .uv/bin/python -m pip install --quiet uv; }
fi
