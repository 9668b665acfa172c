"""A few forwards in a child process, before a build is trusted: a crash in native code cannot be caught.

GCC 12 miscompiles llama.cpp's AMX kernels, so that the first forward of four or more tokens is an illegal instruction.
The answer is kept per build and quantisation, so that only the first load pays for it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from slipstream.errors import BuildError
from slipstream.models.llamacpp import library

SIZES = (1, 4, 16)
TIMEOUT_S = 300.0


def run(model: Path, gpu_layers: int = 0, noise: bool = False) -> dict[str, Any]:
    """Forwards of 1, 4 and 16 tokens in a child: {"ok", "ms": {n: …}, "message"}; what the child does never raises.

    With `noise` there is "noise" too, see models/llamacpp/noise.py.
    """
    command = [sys.executable, "-m", __name__, str(model), str(gpu_layers), *(["noise"] if noise else [])]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        message = f"a small forward had not finished after {TIMEOUT_S:.0f} s"
        return {"ok": False, "ms": {}, "message": message, "signal": "timeout"}
    done: dict[str, float] = {}
    more: dict[str, Any] = {}
    for line in child.stdout.splitlines():
        if line.startswith("{"):
            said = json.loads(line)
            done.update(said.get("ms", {}))
            more.update((name, found) for name, found in said.items() if name != "ms")
    if child.returncode == 0:
        return {"ok": True, "ms": done, "message": "works", **more}
    if child.returncode < 0:
        number = -child.returncode
        name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        reached = f"after the forward of {list(done)[-1]}" if done else "at the first forward"
        return {"ok": False, "ms": done, "message": f"the native library crashed ({name}) {reached}", "signal": name}
    tail = child.stderr.strip().splitlines()
    return {"ok": False, "ms": done, "message": tail[-1] if tail else f"the child ended with {child.returncode}"}


def ensure(model: Path, quantization: str, cache: Path, gpu_layers: int = 0) -> None:
    """Raise BuildError when this build crashes on such a model. A build that passed is not tried again."""
    key = f"{library.build_id()}-{quantization}-{gpu_layers != 0}"
    try:
        passed = set(json.loads(cache.read_text()))
    except (OSError, ValueError, TypeError):
        passed = set()
    if key in passed:
        return
    answer = run(model, gpu_layers)
    if answer.get("signal"):
        raise BuildError(f"{answer['message']}: this build of llama-cpp-python is not safe here", library.FIX)
    if answer["ok"]:
        try:
            cache.parent.mkdir(parents=True, exist_ok=True)
            cache.write_text(json.dumps(sorted(passed | {key})))
        except OSError:
            pass  # only a cache: the next load probes again


def _child(path: str, gpu_layers: str, *more: str) -> None:
    from slipstream.core.types import Span
    from slipstream.models.llamacpp.model import LlamaModel, LlamaOptions
    from slipstream.models.llamacpp.noise import ROOM, noise

    n_ctx, n_slots = (ROOM, 2) if more else (64, 1)
    options = LlamaOptions(n_ctx=n_ctx, n_slots=n_slots, gpu_layers=int(gpu_layers), n_batch=32)
    model = LlamaModel(Path(path), options)
    for n in SIZES:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            model.forward([Span(0, [1] * n, range(-1, n - 1), range(n))])
            times.append(1000 * (time.perf_counter() - start))
            model.keep(0, ())
        print(json.dumps({"ms": {str(n): round(min(times), 2)}}), flush=True)
    if more:
        print(json.dumps({"noise": noise(model)}), flush=True)


if __name__ == "__main__":
    _child(*sys.argv[1:])
