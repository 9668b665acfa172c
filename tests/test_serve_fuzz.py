"""What no client should send, and clients that leave at any moment: the server lives, loses no slot and no memory."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from fuzzing import Case, case
from helpers import assert_own
from slipstream.advise.compare import compare
from slipstream.core.types import SamplingParams
from slipstream.engine import Engine
from toy_server import Child

SEED, CASES, WARM, HANG_UPS, LIMIT = 5, 5000, 2000, 200, 60.0
GROWTH = 1.02


def fate(address: tuple[str, int], c: Case) -> int:
    """Send one case; what `status` makes of the answer, or 0 where there was none to be had."""
    with socket.create_connection(address, timeout=LIMIT) as sock:
        try:
            for piece in c.pieces:
                sock.sendall(piece)
            if c.end == "reset":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if c.end in ("read", "half-close"):
                sock.shutdown(socket.SHUT_WR) if c.end == "half-close" else None
                return status(b"".join(iter(lambda: sock.recv(65536), b"")))
            if c.end == "hang up while reading":
                return status(sock.recv(9 + len(c.pieces[0]) % 300))
        except OSError as e:  # reset, or closed before all was sent
            assert not isinstance(e, TimeoutError), f"no answer and no end: {c}"
        return 0


def status(data: bytes) -> int:
    """The worst of the answers, as there may be several; 0: none."""
    assert data.startswith(b"HTTP/1.1 "[: len(data)]), data[:100]
    return max(map(int, re.findall(rb"HTTP/1\.1 (\d{3}) ", data)), default=0)


def all_free(url: str) -> None:
    """No request runs or waits any more, and each slot answers."""
    end = time.monotonic() + LIMIT
    health: dict[str, Any] = {}
    while health.get("active") != 0 or health.get("waiting") != 0:
        assert time.monotonic() < end, health
        health = httpx.get(f"{url}/health", timeout=LIMIT).json()
        time.sleep(0.01)
    assert health["status"] == "ok" and health["slots"] == 4
    request = {"prompt": "abc", "max_tokens": 3, "ignore_eos": True, "n": 4}
    answer = httpx.post(f"{url}/v1/completions", json=request, timeout=LIMIT)
    assert answer.status_code == 200 and len(answer.json()["choices"]) == 4


def settled(pid: int) -> int:
    """Resident bytes, once they no longer fall."""
    process = psutil.Process(pid)
    sizes = [process.memory_info().rss]
    for _ in range(10):
        time.sleep(0.05)
        sizes.append(process.memory_info().rss)
    return min(sizes)


def address_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return host, int(port)


def test_five_thousand_malformed_requests(tmp_path: Path) -> None:
    options = {"max_body": 100_000, "body_seconds": 0.2, "max_tokens": 16, "max_waiting": 8}
    with Child(tmp_path / "log", **options) as server, ThreadPoolExecutor(4) as pool:
        address, pid = address_of(server.url), server.process.pid

        def run(numbers: range) -> list[tuple[int, int]]:
            return list(pool.map(lambda n: (n, fate(address, case(SEED, n))), numbers))

        seen = run(range(WARM))
        all_free(server.url)
        before = settled(pid)
        seen += run(range(WARM, CASES))
        all_free(server.url)
        after = settled(pid)
        assert server.process.poll() is None
    log = (tmp_path / "log").read_text()
    assert not [n for n, s in seen if s >= 500]
    assert "Traceback" not in log and "ERROR" not in log, log[-3000:]
    assert after <= GROWTH * before, (before, after)
    statuses = Counter(s for _, s in seen)
    for expected in (0, 200, 400, 404, 405, 413, 415):  # the fuzz reaches what it is for
        assert statuses[expected] >= 5, statuses
    assert len(seen) == CASES


# -- hang-ups ----------------------------------------------------------------------------------------------------------


def stream_text(url: str, request: dict[str, Any]) -> str:
    text, last = "", ""
    with httpx.stream("POST", f"{url}/v1/completions", json={**request, "stream": True}, timeout=LIMIT) as r:
        assert r.status_code == 200
        for line in r.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line[6:])
                assert "error" not in event, event
                text += "".join(c["text"] for c in event["choices"])
            last = line or last
    assert last == "data: [DONE]"
    return text


def hang_up(address: tuple[str, int], rng: random.Random, n: int) -> None:
    """A stream whose client leaves after some bytes: while it waits, in the head, between events or within one."""
    request = {"prompt": f"request {n} " * rng.randrange(1, 9), "max_tokens": 300, "ignore_eos": True, "stream": True}
    body = json.dumps(request | {"n": rng.choice([1, 1, 2]), "seed": n}).encode()
    with socket.create_connection(address, timeout=LIMIT) as sock:
        if rng.random() < 0.5:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n")
        sock.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        left = int(rng.expovariate(1 / 1000))
        while left > 0 and (data := sock.recv(min(left, 4096))):
            left -= len(data)


def texts_beside_hang_ups(url: str, request: dict[str, Any], numbers: range) -> list[str]:
    """What a stream said, over and over, while clients of three threads hung up."""
    over, texts = threading.Event(), []

    def keep_asking() -> None:
        while not over.is_set():
            texts.append(stream_text(url, request))

    with ThreadPoolExecutor(4) as pool:
        steady = pool.submit(keep_asking)
        try:
            list(pool.map(lambda n: hang_up(address_of(url), random.Random(f"{SEED}:{n}"), n), numbers))
        finally:
            over.set()
        steady.result(LIMIT)
    return texts


def test_hang_ups_change_nothing_for_a_stream_of_the_toy(tmp_path: Path) -> None:
    request = {"prompt": "abcabcab", "max_tokens": 300, "ignore_eos": True, "seed": 3, "temperature": 0.7}
    with Child(tmp_path / "log") as server:
        solo = stream_text(server.url, request)
        assert set(texts_beside_hang_ups(server.url, request, range(1000, 1000 + HANG_UPS))) == {solo}
        before = settled(server.process.pid)
        texts = texts_beside_hang_ups(server.url, request, range(HANG_UPS))
        assert texts and set(texts) == {solo}
        all_free(server.url)
        assert settled(server.process.pid) <= GROWTH * before
    assert "Traceback" not in (tmp_path / "log").read_text()


@contextmanager
def smollm2_server() -> Iterator[tuple[str, int]]:
    """The real command; its address and process id. Idle conversations may take memory, so they get none here."""
    command = [sys.executable, "-m", "slipstream", "serve", "-m", "smollm2-135m", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--k", "4", "--ctx", "512", "--cache-ram", "0"],
        stderr=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    try:
        assert process.stderr
        said = ""
        for line in process.stderr:
            said += line
            if "Ctrl-C ends it" in line:
                break
        found = re.search(r"serving \S+ on (\S+)", said)
        assert found, said
        yield found[1], process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def same_or_near_tie() -> Callable[[str, list[str], str], None]:
    def check(prompt: str, texts: list[str], solo: str) -> None:
        """Another batch may round otherwise: a text may differ from the solo one where two tokens are all but equal."""
        others = {t for t in texts if t != solo}
        if not others:
            return
        with Engine.open("smollm2-135m", None, n_ctx=512) as engine:
            encode = engine.tokenizer.encode
            for text in others:
                answer = compare(engine, encode(prompt), SamplingParams(), encode(solo), encode(text))
                assert_own(answer, solo, text)

    return check


def test_hang_ups_change_nothing_for_a_stream_of_smollm2(
    smollm2: Path, same_or_near_tie: Callable[[str, list[str], str], None]
) -> None:
    prompt = "List the days of the week, one on each line:\nMonday\nTuesday\n"
    request = {"prompt": prompt, "max_tokens": 60, "temperature": 0, "seed": 3}
    with smollm2_server() as (url, pid):
        solo = stream_text(url, request)
        texts = texts_beside_hang_ups(url, request, range(1000, 1040))
        before = settled(pid)
        texts += texts_beside_hang_ups(url, request, range(HANG_UPS))
        all_free(url)
        assert settled(pid) <= GROWTH * before
    assert texts
    same_or_near_tie(prompt, texts, solo)
