#!/usr/bin/env bash
# Builds llama-server from the llama.cpp that llama-cpp-python carries, once (some minutes), and prints its folder. Only
# the tests and benchmarks that look at other engines need it.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/uv.sh
version="$(sed -n 's/^ *"llama-cpp-python==\([0-9.]*\)".*/\1/p' pyproject.toml)"
place="${SLIPSTREAM_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/slipstream}/engines/llama-server-$version"
if [ ! -x "$place/llama-server" ]; then
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  {
    "${UV[@]}" run python -m pip download --quiet --no-deps --no-binary llama-cpp-python -d "$work" \
      "llama-cpp-python==$version"
    tar -xzf "$work"/*.tar.gz -C "$work"
    flags="-fno-tree-dse -fno-dse" # see docs/build.md
    "${UV[@]}" run --with cmake --with ninja bash -ec "
      cmake -G Ninja -S '$work'/llama_cpp_python-*/vendor/llama.cpp -B '$work/build' -DCMAKE_BUILD_TYPE=Release \
        -DBUILD_SHARED_LIBS=OFF -DCMAKE_C_FLAGS='$flags' -DCMAKE_CXX_FLAGS='$flags' -DLLAMA_BUILD_TESTS=OFF \
        -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF \
        -DLLAMA_USE_PREBUILT_UI=OFF
      cmake --build '$work/build' --target llama-server -j 2"
    mkdir -p "$place"
    mv "$work/build/bin/llama-server" "$place/llama-server"
  } >&2
fi
echo "$place"
