"""Ask a live server over HTTP: whole answers, streams, many at once. `Held` stops its engine before a step."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx

from slipstream.core.types import StepRecord
from slipstream.engine import Engine
from slipstream.generation import Chunk, Generation, Request

LIMIT = 60.0
_FORWARD_S = 0.0005  # a toy's step keeps the interpreter to itself; a model's forward lets the server's loop have it
TAKES_CONTENT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"  # a toy's chat template
T = TypeVar("T")
Json = dict[str, Any]


class Asker:
    """A client of the server at `url`. Greedy unless a temperature is given; a prompt may be text or token ids."""

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, body: Mapping[str, Any], status: int = 200) -> Json:
        answer = httpx.post(self.url + path, json=body, timeout=LIMIT)
        assert answer.status_code == status, answer.text
        return dict(answer.json())

    def get(self, path: str) -> Json:
        return dict(httpx.get(self.url + path, timeout=LIMIT).raise_for_status().json())

    def complete(self, prompt: str | Sequence[int], status: int = 200, **fields: Any) -> Json:
        return self.post("/v1/completions", completion(prompt, fields), status)

    def chat(self, messages: str | Sequence[Any], status: int = 200, **fields: Any) -> Json:
        return self.post("/v1/chat/completions", conversation(messages, fields), status)

    def stream(self, prompt: str | Sequence[int], **fields: Any) -> Iterator[Json]:
        """Chunks of a completion as they come."""
        return self._events("/v1/completions", completion(prompt, fields))

    def stream_chat(self, messages: str | Sequence[Any], **fields: Any) -> Iterator[Json]:
        return self._events("/v1/chat/completions", conversation(messages, fields))

    def _events(self, path: str, body: Mapping[str, Any]) -> Iterator[Json]:
        ended = False
        with httpx.stream("POST", self.url + path, json={**body, "stream": True}, timeout=LIMIT) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                if not line.startswith("data:"):
                    continue
                assert not ended, f"after the end: {line}"
                data = line.removeprefix("data:").strip()
                ended = data == "[DONE]"
                if not ended:
                    chunk = json.loads(data)
                    assert "error" not in chunk, chunk
                    yield chunk
        assert ended, "the stream broke off"

    def counters(self) -> dict[str, float]:
        """Every sample of /metrics: `name` or `name{label="value"}` to its value."""
        text = httpx.get(self.url + "/metrics", timeout=LIMIT).raise_for_status().text
        return {m[1]: float(m[2]) for m in re.finditer(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)}

    def until(self, condition: Callable[[Json], bool]) -> None:
        """Wait for what /health says."""
        ends = time.monotonic() + LIMIT
        while not condition(self.get("/health")):
            assert time.monotonic() < ends, "it never came"
            time.sleep(0.005)


def completion(prompt: str | Sequence[int], fields: Mapping[str, Any]) -> Json:
    ids_or_text = prompt if isinstance(prompt, str) else list(prompt)
    return {"model": "default", "prompt": ids_or_text, "temperature": 0, **fields}


def conversation(messages: str | Sequence[Any], fields: Mapping[str, Any]) -> Json:
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    return {"model": "default", "messages": turns, "temperature": 0, **fields}


def text(answer: Mapping[str, Any], choice: int = 0) -> str:
    """Of a whole answer, or what one chunk adds."""
    return "".join(_content(c) for c in answer["choices"] if c["index"] == choice)


def _content(choice: Mapping[str, Any]) -> str:
    if "text" in choice:
        return str(choice["text"])
    return (choice.get("message") or choice.get("delta") or {}).get("content") or ""


def joined(chunks: Sequence[Mapping[str, Any]], choice: int = 0) -> str:
    return "".join(text(c, choice) for c in chunks)


def finish(answer: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str | None:
    """Why choice 0 of an answer, or of a stream, ended."""
    chunks = [answer] if isinstance(answer, Mapping) else answer
    reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["index"] == 0]
    assert all(r is None for r in reasons[:-1]), "something came after the end"
    return reasons[-1] if reasons else None


def report(chunks: Sequence[Json]) -> Json:
    """The `speculative` object of a stream: in the last chunk that has choices."""
    return dict([c for c in chunks if c["choices"]][-1]["speculative"])


def at_once(calls: Sequence[Callable[[], T]], width: int | None = None) -> list[T]:
    """All of them in threads, `width` at a time; their results in order."""
    with ThreadPoolExecutor(width or len(calls)) as pool:
        return [f.result(LIMIT * 2) for f in [pool.submit(c) for c in calls]]


class Halt:
    """A step that the engine does not begin before `go`."""

    def __init__(self) -> None:
        self._reached, self._free = threading.Event(), threading.Event()

    def wait(self) -> None:
        assert self._reached.wait(LIMIT), "the engine never came there"

    def go(self) -> None:
        self._free.set()

    def stand(self) -> None:
        self._reached.set()
        assert self._free.wait(LIMIT), "nobody let the engine go on"


class Held:
    """Opens an engine that can be stopped before a step, and keeps what ran in it, in order.

    `steps` holds for each step the record of every request that took part.
    """

    def __init__(self, open_engine: Callable[[], Engine]) -> None:
        self._open = open_engine
        self._halts: dict[int, Halt] = {}
        self.steps: list[dict[Generation, StepRecord]] = []
        self.started: list[Generation] = []
        self.finished: list[Generation] = []

    def __call__(self) -> Engine:
        engine = self._open()
        submit, step = engine.submit, engine.step

        def logged(request: Request) -> Generation:
            self.started.append(submit(request))
            return self.started[-1]

        def halting() -> dict[Generation, Chunk]:
            time.sleep(_FORWARD_S)
            if halt := self._halts.pop(len(self.steps), None):
                halt.stand()
            chunks = step()
            self.steps.append({g: c.record for g, c in chunks.items() if c.record is not None})
            self.finished += [g for g in chunks if g.done]
            return chunks

        engine.submit, engine.step = logged, halting  # type: ignore[method-assign]
        return engine

    def halt(self, steps: int) -> Halt:
        """Stop after so many more steps; to be asked for while the engine is idle."""
        return self._halts.setdefault(len(self.steps) + steps, Halt())
