"""Where a number comes from: versions, machine, build and files."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import psutil

from slipstream import __version__
from slipstream.hub import cache, catalog
from slipstream.models.llamacpp import library
from slipstream.models.machine import cpu_flags, usable_cores

# Instruction sets that llama.cpp has kernels for.
FLAGS_THAT_MATTER = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16",
    "asimd", "asimddp", "i8mm", "sve", "bf16",
)  # fmt: skip
PACKAGES = ("llama-cpp-python", "numpy", "scipy", "huggingface-hub", "typer", "rich", "jinja2", "pip")


def cpu_model() -> str:
    """The CPU's own name for itself, or its family where it does not say."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def flags() -> list[str]:
    return [flag for flag in FLAGS_THAT_MATTER if flag in cpu_flags()]


def versions() -> dict[str, str]:
    found = {"slipstream": __version__}
    for name in PACKAGES:
        try:
            found[name] = package_version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def busy() -> float:
    """Share of the CPU that all programs together took in the last tenth of a second, 0 to 1."""
    return float(psutil.cpu_percent(interval=0.1)) / 100


def machine() -> dict[str, Any]:
    """Cores are counts; memory is in bytes; load is the share of the CPU in use, 0 to 1."""
    return {
        "cpu": cpu_model(),
        "flags": flags(),
        "cores": usable_cores(),
        "threads": os.cpu_count(),
        "memory": psutil.virtual_memory().total,
        "load": busy(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def model_file(path: Path) -> dict[str, Any]:
    """Name, size in bytes and sha256; a catalogue file that was checked before is not read again."""
    return {"file": path.name, "size": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    for entry in catalog.builtin().values():
        if cache.model_path(entry) == path and cache.is_verified(entry):
            return entry.sha256
    return cache.sha256_of(path)


def provenance(models: Mapping[str, Path], threads: int = 0) -> dict[str, Any]:
    """Everything that a reader needs to judge or repeat a measurement. `threads` 0 means the default number."""

    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": versions(),
        "machine": machine(),
        "build": {"id": library.build_id(), "system_info": library.system_info(), "gpus": library.gpus()},
        "threads": threads or usable_cores(),
        "models": {role: model_file(path) for role, path in models.items()},
    }
