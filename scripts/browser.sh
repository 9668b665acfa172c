#!/usr/bin/env bash
# Sees to it that there is a Chromium for the tests that look at pages, from the system's own packages.
set -euo pipefail
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null 2>&1; then exit 0; fi
done
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
  echo "error: the tests that look at pages need Chromium" >&2
  echo "hint: install chromium and a font with Chinese characters with your system's package manager" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends chromium fonts-wqy-microhei
