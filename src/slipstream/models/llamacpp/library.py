"""The native library: opened once, its log kept, its build described."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import os
from collections import deque
from pathlib import Path
from typing import Any

from slipstream.errors import BuildError, InputError
from slipstream.hub.cache import cache_dir
from slipstream.models.llamacpp import kernels

FIX = (
    'reinstall with the flags that mend it: CMAKE_ARGS=\'-DCMAKE_C_FLAGS="-fno-tree-dse -fno-dse" '
    '-DCMAKE_CXX_FLAGS="-fno-tree-dse -fno-dse"\' pip install --force-reinstall --no-cache-dir '
    "--no-binary llama-cpp-python llama-cpp-python"
)
KV_TYPES = {"f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2}

_log: deque[str] = deque(maxlen=200)
_keep_alive: list[Any] = []


@functools.cache
def lib() -> Any:
    """The `llama_cpp.llama_cpp` module, with its log going to memory and our kernels before it where they fit.

    Raises BuildError when it cannot be loaded.
    """
    own_kernels()
    try:
        import llama_cpp.llama_cpp as low
    except Exception as e:  # a broken shared library raises OSError, RuntimeError or others
        raise BuildError(f"llama-cpp-python cannot be loaded: {e}", FIX) from e

    @low.llama_log_callback  # type: ignore[untyped-decorator]
    def on_log(level: int, text: bytes, _data: Any) -> None:
        _log.append(text.decode("utf-8", "replace").rstrip())

    _keep_alive.append(on_log)
    low.llama_log_set(on_log, None)
    low.llama_backend_init()
    return low


@functools.cache
def own_kernels() -> kernels.Status:
    """Our own matrix kernels, loaded once, before llama.cpp; or why they are not in use."""
    return kernels.load(cache_dir() / "kernels")


def kernels_library() -> ctypes.CDLL | None:
    """Our kernels, where they are in use."""
    status = own_kernels()
    return ctypes.CDLL(str(status.path)) if status.active else None


def _be_patient() -> None:
    """Let OpenMP threads that wait for one another sleep soon, so that they do not spin in each other's way.

    GCC's OpenMP spins for about a millisecond at each of a forward's hundreds of barriers. When another process wants
    a core, the spinning thread holds up the very thread that it waits for: on two busy cores a forward of SmolLM2 took
    2,960 ms, with this bound 34 ms, and nothing is lost on a quiet machine (docs/build.md). It must be set before the
    library is loaded; a user's own setting is left alone.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = "1000"


_be_patient()


def last_error() -> str:
    """The last line of llama.cpp's log that tells of a failure."""
    bad = [line for line in _log if any(w in line.lower() for w in ("error", "failed", "invalid", "unknown"))]
    return bad[-1] if bad else (_log[-1] if _log else "no message")


def kv_type(name: str) -> int:
    """ggml's number of a cache type. Raises InputError for one that is not known."""
    try:
        return KV_TYPES[name]
    except KeyError:
        raise InputError(f"unknown KV cache type: {name}", f"use one of {', '.join(KV_TYPES)}") from None


def system_info() -> str:
    """CPU features that the build uses, as llama.cpp prints them."""
    return str(lib().llama_print_system_info().decode())


def gpu_offload() -> bool:
    return bool(lib().llama_supports_gpu_offload())


def version() -> str:
    """Of llama-cpp-python, as installed."""
    return importlib.metadata.version("llama-cpp-python")


@functools.cache
def build_id() -> str:
    """Names this build of the native code: version, size and time of its libraries, our kernels, and CPU features."""
    parts = [version(), system_info(), str(own_kernels().path)]
    for path in sorted(_folder().glob("*")):
        stat = path.stat()
        parts.append(f"{path.name}:{stat.st_size}:{stat.st_mtime_ns}")
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def _folder() -> Path:
    """Where the shared libraries lie."""
    return Path(os.environ.get("LLAMA_CPP_LIB_PATH") or Path(lib().__file__).parent / "lib")


def gpus() -> list[tuple[str, int]]:
    """Name and free bytes of each GPU that the build can use; empty for a CPU build."""
    if not gpu_offload():
        return []
    found = []
    names = ("libggml.so", "libggml.dylib", "ggml.dll")
    where = next((p for n in names if (p := _folder() / n).exists()), None)
    if where is None:
        return []
    ggml = ctypes.CDLL(str(where))
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_name.restype = ctypes.c_char_p
    for i in range(ggml.ggml_backend_dev_count()):
        device = ctypes.c_void_p(ggml.ggml_backend_dev_get(ctypes.c_size_t(i)))
        if ggml.ggml_backend_dev_type(device) == 1:  # GGML_BACKEND_DEVICE_TYPE_GPU
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            ggml.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
            found.append((ggml.ggml_backend_dev_name(device).decode(), free.value))
    return found
