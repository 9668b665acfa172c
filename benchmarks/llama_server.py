"""llama-server as a contestant: one child process on the loopback for each answer, so that nothing is remembered.

Several of its n-gram modes keep what earlier requests taught them; a process that has just started knows nothing, and
one that has ended takes no processor time from the next contestant. Its warm-up reads a short text without decoding.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contestants import PLAIN, Answer, Asked, Setting
from slipstream.core.types import SamplingParams
from slipstream.errors import BuildError, CapabilityError, InputError

PROGRAM = "llama-server"
TUNED_N_MAX = (1, 2, 3, 5, 7, 11)
START_S, ANSWER_S = 120, 600
WARM_UP = tuple(range(1000, 1064))  # any tokens will do: they fill no n-gram table, as nothing is drafted for them


@dataclass(frozen=True)
class Mode:
    """A way to run the server. `table` 1: what its defaults give; 2: what a user could only find by hand."""

    name: str
    flags: tuple[str, ...] = ()
    table: int = 1


def modes(draft: Path | None = None, tuned: Path | None = None, n_max: Sequence[int] = TUNED_N_MAX) -> list[Mode]:
    """Plain decoding first. Names of flags as in `llama-server --help` of the build that is raced."""
    simple = ("--spec-type", "ngram-simple")
    found = [
        Mode(PLAIN),
        Mode("ngram-simple", simple),
        Mode("ngram-simple-3-7", (*simple, "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "7")),
        Mode("ngram-mod", ("--spec-default",)),
        Mode("ngram-cache", ("--spec-type", "ngram-cache")),
    ]
    if draft is not None:
        found.append(Mode("draft-simple", drafting(draft)))
    if tuned is not None:
        found += [Mode(f"tuned-{n}", (*drafting(tuned), "--spec-draft-n-max", str(n)), table=2) for n in n_max]
    return [Mode(f"{PROGRAM}:{m.name}", m.flags, m.table) for m in found]


def drafting(draft: Path) -> tuple[str, ...]:
    return ("--spec-type", "draft-simple", "--spec-draft-model", str(draft))


class LlamaServer:
    """A contestant. Raises CapabilityError when the server does not start or answers with an error."""

    program = PROGRAM

    def __init__(
        self, mode: Mode, binary: Path, target: Path, setting: Setting, ends: frozenset[int], kernels: Path | None
    ) -> None:
        self.mode, self.name, self.ends = mode, mode.name, ends
        # The same kernels on both sides: what is raced is how drafts are made and when.
        self.env = {k: v for k, v in os.environ.items() if k != "GOMP_SPINCOUNT" or kernels}
        if kernels:
            self.env["LD_PRELOAD"] = str(kernels)
        self.command = [
            str(binary), "--model", str(target), *mode.flags,
            "--ctx-size", str(setting.n_ctx), "--threads", str(setting.threads), "--parallel", "1",
            "--host", "127.0.0.1", "--cache-ram", "0", "--offline",
        ]  # fmt: skip

    def answer(self, asked: Asked, plain: Sequence[int] | None) -> Answer:
        with self._running() as url:
            post(url, body(WARM_UP, 1, asked.sampling))
            start = time.perf_counter()
            said = post(url, body(asked.ids, asked.max_tokens, asked.sampling))
            return parse(said, time.perf_counter() - start, self.ends)

    def close(self) -> None:
        return None

    @contextmanager
    def _running(self) -> Iterator[str]:
        port = free_port()
        with tempfile.TemporaryFile() as log:
            command = [*self.command, "--port", str(port)]
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=self.env)
            try:
                url = f"http://127.0.0.1:{port}"
                self._wait(process, url)
                yield url
            except (CapabilityError, urllib.error.URLError, ConnectionError, TimeoutError) as e:
                log.seek(0)
                last = log.read().decode(errors="replace").strip().splitlines()[-3:]
                raise CapabilityError(f"{self.name}: {e}", "its last lines: " + " / ".join(last)) from e
            finally:
                process.kill()
                process.wait()

    def _wait(self, process: subprocess.Popen[bytes], url: str) -> None:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if process.poll() is not None:
                raise CapabilityError(f"it ended with code {process.returncode} before it was ready")
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=5) as response:
                    if response.status == 200:
                        return
            except (urllib.error.URLError, ConnectionError, TimeoutError):  # not listening, or still loading
                time.sleep(0.02)
        raise CapabilityError(f"it was not ready after {START_S} s")


def body(ids: Sequence[int], n: int, sampling: SamplingParams) -> dict[str, Any]:
    """A request to /completion that samples as Slipstream does, from the whole vocabulary at the asked temperature.

    Greedy is asked for in the cheapest way the server has: the best one token, before anything of size n_vocab.
    """
    greedy = sampling.greedy
    return {
        "prompt": list(ids),
        "n_predict": n,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "samplers": ["top_k"] if greedy else ["temperature"],
        "top_k": 1 if greedy else 0,
        "cache_prompt": False,
        "return_tokens": True,
    }


def post(url: str, data: Mapping[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(data).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=ANSWER_S) as response:
        said: dict[str, Any] = json.load(response)
        return said


def parse(said: Mapping[str, Any], wall_s: float, ends: frozenset[int]) -> Answer:
    """What the server reports of itself. It counts an end token as predicted: left out, as Slipstream does."""
    timings, ids = said["timings"], tuple(said["tokens"])
    ended = bool(ids) and ids[-1] in ends
    ids = ids[:-1] if ended else ids
    return Answer(
        ids=ids,
        finish="stop" if ended else "length",
        tokens=max(len(ids) - 1, 0),
        decode_s=timings["predicted_ms"] / 1000,
        first_s=timings["prompt_ms"] / 1000,
        wall_s=wall_s,
        drafted=timings.get("draft_n", 0),
        accepted=timings.get("draft_n_accepted", 0),
    )


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def version(binary: Path) -> str:
    """Its own word on its build. Raises InputError for what is no llama-server, BuildError when it does not run."""
    try:
        done = subprocess.run([str(binary), "--version"], capture_output=True, text=True, timeout=60)
    except OSError as e:
        raise InputError(f"cannot run {binary}: {e.strerror}", "give the path of a llama-server") from e
    if done.returncode:
        raise BuildError(f"{binary.name} --version ended with code {done.returncode}", "see benchmarks/README.md")
    return " ".join((done.stdout + done.stderr).split())
