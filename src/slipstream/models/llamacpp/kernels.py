"""Our own matrix kernels, put in the place of llama.cpp's slow ones on x86 CPUs with AVX-512 VNNI.

llama.cpp multiplies most quantised types token by token on these CPUs, so verifying 8 drafted tokens costs 6 plain
steps. `kernels.c` unpacks a weight once for all tokens. It is compiled on the user's machine, compared with llama.cpp's
own functions in a child process, kept under a name that covers everything it depends on, and loaded before llama.cpp,
whose calls it then answers (symbol interposition). Where anything is missing, llama.cpp is used as it is, and
`Status.reason` says why. `SLIPSTREAM_KERNELS=0` switches it off.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from slipstream.models.machine import cpu_flags

VERSIONS = ("0.3.36",)  # of llama-cpp-python, whose structs and function names were compared with kernels.c
CPU_FLAGS = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "f16c")
SOURCES = ("kernels.c", "kernels_tiles.h", "kernels_attention.h", "kernels_order.h")
OPTIONS = ("-O3", "-march=native", "-ffp-contract=off", "-fvisibility=hidden", "-shared", "-fPIC")
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Status:
    """Whether the kernels are in use, why not if they are not, and the file that was loaded."""

    active: bool
    reason: str
    path: Path | None = None


class _Unusable(Exception):
    """Why the kernels cannot be used here; never leaves this module."""


def load(folder: Path) -> Status:
    """Compile (once), check (once) and load the kernels, kept in `folder`. Call it before llama.cpp is loaded.

    Never raises: what stands in the way becomes the reason. The first call on a machine takes some seconds.
    """
    try:
        path = build(folder)
        if "llama_cpp.llama_cpp" in sys.modules:
            raise _Unusable("llama.cpp was loaded before the kernels")
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except _Unusable as why:
        return Status(False, str(why))
    except (OSError, subprocess.SubprocessError) as error:
        return Status(False, f"the kernels could not be built or loaded: {error}")
    return Status(True, "checked against llama.cpp's own functions", path)


def build(folder: Path) -> Path:
    """The checked library in `folder`, compiled if it is not there yet. Raises _Unusable, OSError, SubprocessError."""
    native = _require_machine()
    compiler = _compiler()
    path = folder / f"kernels-{_fingerprint(compiler, native)}.so"
    record = path.with_suffix(".json")
    if path.exists() and record.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{path.name}.{os.getpid()}"
    try:
        _run([compiler, *OPTIONS, "-o", str(fresh), str(_HERE / "kernels.c"), "-ldl"], "compiling failed")
        checked = _run(
            [sys.executable, "-m", "slipstream.models.llamacpp.kernels_check", str(fresh), str(native)], "check failed"
        )
        os.replace(fresh, path)
        note = folder / f".{record.name}.{os.getpid()}"
        note.write_text(checked, encoding="utf-8")
        os.replace(note, record)
    finally:
        fresh.unlink(missing_ok=True)
    return path


def result(path: Path) -> dict[str, object]:
    """What the check of a library found, as recorded beside it; empty when there is no record."""
    try:
        found = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _require_machine() -> Path:
    """The folder of llama.cpp's libraries. Raises _Unusable when this machine or installation is not a fit."""
    if os.environ.get("SLIPSTREAM_KERNELS") == "0":
        raise _Unusable("switched off by SLIPSTREAM_KERNELS=0")
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise _Unusable(f"made for Linux on x86-64, not {sys.platform} on {platform.machine()}")
    if missing := [flag for flag in CPU_FLAGS if flag not in cpu_flags()]:
        raise _Unusable(f"the CPU lacks {', '.join(missing)}")
    try:
        version = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        raise _Unusable("llama-cpp-python is not installed") from None
    if version not in VERSIONS:
        raise _Unusable(f"made for llama-cpp-python {', '.join(VERSIONS)}, not {version}")
    spec = importlib.util.find_spec("llama_cpp")
    places = list(spec.submodule_search_locations or ()) if spec else []
    native = Path(os.environ.get("LLAMA_CPP_LIB_PATH") or (Path(places[0]) / "lib" if places else ""))
    if not (native / "libggml-cpu.so.0").exists():
        raise _Unusable("this llama-cpp-python has no libggml-cpu.so.0 of its own")
    return native


def _compiler() -> str:
    """A C compiler: $CC, cc, gcc or clang. Raises _Unusable when there is none."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    raise _Unusable("no C compiler (cc, gcc or clang) was found")


def _fingerprint(compiler: str, native: Path) -> str:
    """Names everything that the compiled library and its check depend on."""
    stat = (native / "libggml-cpu.so.0").stat()
    parts = [_run([compiler, "--version"], "the C compiler does not run"), *OPTIONS, *sorted(cpu_flags())]
    parts += [importlib.metadata.version("llama-cpp-python"), f"{native}:{stat.st_size}:{stat.st_mtime_ns}"]
    parts += [(_HERE / name).read_text(encoding="utf-8") for name in (*SOURCES, "kernels_check.py")]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def _run(command: list[str], what: str) -> str:
    """The command's output. Raises _Unusable with the last line of what it complained about."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or [
            f"exit {done.returncode}"
        ]
        raise _Unusable(f"{what}: {said[-1].strip()}")
    return done.stdout
