"""The servers of a load: child processes on the loopback that stay up side by side, of which one at a time has work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from llama_server import PROGRAM, free_port
from slipstream.advise.counters import Reading, read
from slipstream.errors import CapabilityError

PRICED, PLAIN = "priced", "plain"
START_S, STOP_S = 300, 20


@dataclass(frozen=True)
class Setting:
    """What all servers of a load have in common. `n_ctx` is per slot; `draft` is what the priced one drafts with."""

    model: str
    path: Path  # of the model
    n_ctx: int
    threads: int
    kv_type: str
    draft: str
    llama_server: Path | None
    kernels: Path | None  # for llama-server too; None: as its users have it

    def command(self, name: str, slots: int, port: int) -> list[str]:
        if name == PROGRAM:
            return [
                str(self.llama_server), "--model", str(self.path), "--ctx-size", str(self.n_ctx * slots),
                "--parallel", str(slots), "--no-kv-unified", "--threads", str(self.threads),
                "--cache-type-k", self.kv_type, "--cache-type-v", self.kv_type,
                "--host", "127.0.0.1", "--port", str(port), "--metrics", "--offline",
            ]  # fmt: skip
        return [
            sys.executable, "-m", "slipstream", "serve", "-m", self.model,
            "--draft", self.draft if name == PRICED else "none", "--ctx", str(self.n_ctx),
            "--parallel", str(slots), "--threads", str(self.threads), "--kv-type", self.kv_type,
            "--host", "127.0.0.1", "--port", str(port),
        ]  # fmt: skip

    def environment(self, name: str) -> dict[str, str]:
        env = dict(os.environ)
        if name == PROGRAM:
            env.pop("GOMP_SPINCOUNT", None)
            if self.kernels is not None:
                env |= {"LD_PRELOAD": str(self.kernels), "GOMP_SPINCOUNT": "1000"}  # as Slipstream sets it for itself
        return env


class Running:
    """A server that answers at `url`."""

    def __init__(self, name: str, url: str, process: subprocess.Popen[bytes]) -> None:
        self.name, self.url = name, url
        self._process = psutil.Process(process.pid)

    def cpu_s(self) -> float:
        """Processor time so far, of the process and its children."""
        processes = [self._process, *self._process.children(recursive=True)]
        return sum(sum(p.cpu_times()[:2]) for p in processes)

    def memory(self) -> int:
        """Bytes that it holds in memory."""
        return int(self._process.memory_info().rss)

    def counters(self) -> Reading | None:
        response = httpx.get(f"{self.url}/metrics", timeout=30)
        return read(response.text) if response.status_code == 200 else None

    def props(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.url}/props", timeout=30).json()
        return found

    def count_tokens(self, text: str) -> int:
        return len(httpx.post(f"{self.url}/tokenize", json={"content": text}, timeout=30).json()["tokens"])


@contextmanager
def servers(setting: Setting, names: Sequence[str], slots: int) -> Iterator[dict[str, Running]]:
    """All of them, ready. Raises CapabilityError with its last lines for one that does not start."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(_server(setting, name, slots)) for name in names}


@contextmanager
def _server(setting: Setting, name: str, slots: int) -> Iterator[Running]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            setting.command(name, slots, port), stdout=log, stderr=subprocess.STDOUT, env=setting.environment(name)
        )
        try:
            if not _ready(process, url):
                log.seek(0)
                last = log.read().decode(errors="replace").strip().splitlines()[-5:]
                raise CapabilityError(f"{name} did not start", "its last lines: " + " / ".join(last))
            yield Running(name, url, process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(process: subprocess.Popen[bytes], url: str) -> bool:
    end = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return True
        except httpx.HTTPError:  # not listening yet
            pass
        time.sleep(0.05)
    return False
