"""The load's own parts: prompts that never come twice, clients against a scripted server, and the figures."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

import load
import load_t11 as t11
import load_tables as tables
from load_client import Asked, Heard, Load, drive
from load_prompts import bases, unique
from load_servers import PLAIN, PRICED, Setting


class Scripted(BaseHTTPRequestHandler):
    """Answers "one two three" in three events, of which two share a packet, and a 400 for prompts that say so."""

    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        prompt = body["messages"][0]["content"]
        if "refuse" in prompt:
            self.answer(400, b'{"error": {"message": "no"}}')
            return
        deltas = [{"role": "assistant"}, {"content": "one "}, {"content": "two "}, {"content": "three"}]
        chunks = [{"choices": [{"delta": d, "finish_reason": None}]} for d in deltas]
        chunks.append({"choices": [{"delta": {}, "finish_reason": "stop"}], "speculative": {"verified": 4}})
        chunks.append({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}})
        self.answer(200, b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks) + b"data: [DONE]\n\n")

    def answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        for part in (content[:50], content[50:]):  # cuts a line in two
            self.wfile.write(part)
            self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        return None


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    asked: list[dict[str, Any]] = []
    handler = type("Handler", (Scripted,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}", asked
        http.shutdown()
        thread.join(10)


def test_prompts_are_natural_and_none_comes_twice() -> None:
    texts = bases()
    assert len(texts) > 80 and len({kind for kind, _ in texts}) > 8
    found = list(itertools.islice(unique(1), 2000))
    assert len({text for _, text in found}) == 2000
    assert len({text[:60] for _, text in found}) > 1900, "beginnings that a cache would hold"
    assert list(itertools.islice(unique(1), 50)) == found[:50] != list(itertools.islice(unique(2), 50))
    assert all(any(full.endswith(text) for _, text in texts) for _, full in found)


def test_each_client_asks_what_it_was_given(server: tuple[str, list[dict[str, Any]]]) -> None:
    url, asked = server
    prompts = [f"prompt {i}" for i in range(8)]
    heard = drive(Load(url, 3, prompts, 9, each=2, temperature=0.5, extra={"seed": 4}))
    assert sorted(body["messages"][0]["content"] for body in asked) == prompts[:6]
    assert all((b["max_tokens"], b["temperature"], b["seed"], b["stream"]) == (9, 0.5, 4, True) for b in asked)
    assert [(a.completion_tokens, a.prompt_tokens, a.finish, a.error) for a in heard.requests] == [
        (3, 7, "stop", "")
    ] * 6
    assert all([n for _, n in a.pieces] == [4, 4, 5] and a.speculative == {"verified": 4} for a in heard.requests)
    assert all(a.start <= a.pieces[0][0] <= a.end <= heard.wall_s for a in heard.requests) and heard.cpu_s > 0


def test_a_load_ends_in_time_and_errors_are_kept(server: tuple[str, list[dict[str, Any]]]) -> None:
    url, _ = server
    heard = drive(Load(url, 2, ["fine", "refuse this", *["fine"] * 10_000], 9, seconds=0.3))
    assert heard.requests[1].error.startswith("400") and not heard.requests[0].error
    assert 2 < len(heard.requests) < 10_000 and all(a.start < 0.3 for a in heard.requests)
    gone = drive(Load("http://127.0.0.1:9", 1, ["x"], 9, each=1))
    assert "ConnectError" in gone.requests[0].error


def answer(start: float, pieces: list[tuple[float, int]], tokens: int, **fields: Any) -> Asked:
    return Asked(0, start, pieces[-1][0], pieces=pieces, completion_tokens=tokens, **fields)


def test_only_what_came_within_the_round_counts() -> None:
    heard = Heard(
        [
            answer(0.0, [(1.0, 10), (2.0, 30)], 8),  # whole
            answer(8.0, [(9.0, 25), (11.0, 75)], 20),  # a quarter of its characters in time
            answer(0.0, [(3.0, 10)], 100, error="broke off"),
        ],
        wall_s=11.0,
        cpu_s=0.55,
    )
    found = tables.figures(heard, 10.0)
    assert found["tps"] == pytest.approx((8 + 5) / 10)
    assert (found["asked"], found["done"], found["tokens"]) == (3, 1, 28)
    assert found["ttft"] == [1.0, 1.0]
    assert found["per_token"] == [pytest.approx(1 / 7, abs=1e-4), pytest.approx(2 / 19, abs=1e-4)]
    assert found["gaps"] == [1.0, 2.0] and found["client_cpu"] == pytest.approx(0.05)
    assert tables.within(Asked(0, 0.0, 5.0), 10.0) == 1.0, "an answer without any text"


def row(contestant: str, number: int, tps: float, **fields: Any) -> dict[str, Any]:
    out = {"contestant": contestant, "clients": 4, "round": number, "tps": tps, "asked": 3, "errors": []}
    out |= {"drafted": None, "accepted": None, "ttft": [0.1, 0.2, 0.3], "per_token": [0.01], "gaps": [0.02, 0.04]}
    return out | {"server_cpu": 1.9, "idle_cpu": 0.0, "client_cpu": 0.05, "memory": 1 << 28} | fields


def test_ratios_are_of_the_same_round() -> None:
    rows = [
        row(PRICED, 0, 120, drafted=10, accepted=6),
        row(PLAIN, 0, 100),
        row(PLAIN, 1, 50),
        row(PRICED, 1, 75, drafted=30, accepted=6, errors=["no"]),
    ]
    priced, plain = tables.summary(rows)
    assert priced["over_plain"] == {"median": 1.35, "low": 1.2, "high": 1.5} and "over_llama-server" not in priced
    assert priced["acceptance_rate"] == 12 / 40 and plain["acceptance_rate"] is None
    assert (priced["asked"], priced["errors"]) == (6, 1) and priced["ttft"] == {"p50": 0.2, "p95": 0.3}
    text = tables.markdown(rows)
    assert "| 4 | priced | 97.5 (75.0 to 120.0) | 1.35 (1.20 to 1.50) |" in text
    assert len({line.count("|") for line in text.splitlines()}) == 1


def test_t11_asks_all_three_limits_and_that_it_resumes() -> None:
    def pair(number: int, wall: float, ttft: float) -> dict[str, Any]:
        ratio = {"wall": wall, "late": 1.0, "ttft": ttft}
        return {"clients": 1, "fill": 0, "run": number, "ratio": ratio, "drafted": 5, "accepted": 1,
                "status": {"suffix": "paused: does not pay"}, "errors": []}  # fmt: skip

    again = {"clients": 1, "fill": 0, "resumed": True, "drafted": 9, "accepted": 8, "status": {}, "errors": []}
    (held,) = t11.summary([pair(1, 1.0, 1.05), pair(2, 1.2, 1.0), pair(3, 1.04, 1.09), again])
    assert held["held"] and held["wall"]["median"] == 1.04 and held["drafted"] == 15 and held["resumed"]["resumed"]
    (slow,) = t11.summary([pair(1, 1.06, 1.0), again])
    assert not slow["held"]
    (late,) = t11.summary([pair(1, 1.0, 1.11), again])
    assert not late["held"]
    assert "| yes |" in t11.markdown([pair(1, 1.0, 1.0), again]) and "paused: does not pay" in t11.markdown(
        [pair(1, 1, 1)]
    )


def test_late_is_the_time_behind_the_same_share_of_the_text() -> None:
    asked = answer(0.0, [(1.0, 10), (2.0, 10), (5.0, 60)], 80)
    assert t11.after(asked, 0.25) == 3.0 and t11.after(asked, 0.125) == 4.0
    assert t11.after(Asked(0, 0.0), 0.5) is None


def test_all_servers_have_the_same_settings() -> None:
    setting = Setting("m", Path("m.gguf"), 1024, 2, "q8_0", "suffix", Path("llama-server"), None)
    other = setting.command("llama-server", 4, 1)
    assert other[other.index("--ctx-size") + 1] == "4096" and other[other.index("--parallel") + 1] == "4"
    for name, draft in ((PRICED, "suffix"), (PLAIN, "none")):
        mine = setting.command(name, 4, 1)
        assert mine[mine.index("--ctx") + 1] == "1024" and mine[mine.index("--draft") + 1] == draft
        assert mine[mine.index("--kv-type") + 1] == other[other.index("--cache-type-k") + 1] == "q8_0"
        assert mine[mine.index("--threads") + 1] == other[other.index("--threads") + 1] == "2"


def test_kernels_go_to_builds_that_can_take_them(tmp_path: Path) -> None:
    (tmp_path / "llama-server").touch()
    assert load.kernels(tmp_path / "llama-server") is None and load.kernels(None) is None
