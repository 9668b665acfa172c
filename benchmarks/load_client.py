"""The load itself, in a process of its own: clients that stream chat completions, each asking anew when it is answered.

Reads one JSON object from stdin (the fields of Load) and writes one to stdout (the fields of Heard). Lines of a stream
are read raw, and `cpu_s` says what this process took of the machine that it measures.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

TIMEOUT_S = 600


@dataclass
class Load:
    """`each`: requests of each client; None: new ones until `seconds` are over. Those that run then are read to their
    end. `extra`: more fields of every request."""

    url: str
    clients: int
    prompts: list[str]
    max_tokens: int
    seconds: float = 0.0
    each: int | None = None
    temperature: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class Asked:
    """One request. Times are seconds from the start of the load; `pieces` are times and characters of deliveries."""

    prompt: int
    start: float
    end: float = 0.0
    error: str = ""
    pieces: list[tuple[float, int]] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish: str = ""
    speculative: dict[str, Any] | None = None


@dataclass
class Heard:
    requests: list[Asked]
    wall_s: float  # until the last answer's end
    cpu_s: float  # of this process


class Clients:
    def __init__(self, load: Load) -> None:
        self.load = load
        self.asked: list[Asked] = []
        self.begun = time.perf_counter()

    @property
    def now(self) -> float:
        return time.perf_counter() - self.begun

    async def run(self) -> Heard:
        before = cpu_s()
        limits = httpx.Limits(max_keepalive_connections=0)  # servers close idle connections in ways of their own
        async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as http:
            self.begun = time.perf_counter()
            await asyncio.gather(*(self.client(http) for _ in range(self.load.clients)))
            return Heard(self.asked, self.now, cpu_s() - before)

    async def client(self, http: httpx.AsyncClient) -> None:
        done = 0
        while len(self.asked) < len(self.load.prompts):
            over = self.now >= self.load.seconds if self.load.each is None else done >= self.load.each
            if over:
                return
            asked = Asked(len(self.asked), self.now)
            self.asked.append(asked)
            try:
                await self.ask(http, asked)
            except httpx.HTTPError as e:
                asked.error = f"{type(e).__name__}: {e}"
            asked.end = self.now
            done += 1

    async def ask(self, http: httpx.AsyncClient, asked: Asked) -> None:
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": self.load.prompts[asked.prompt]}],
            "max_tokens": self.load.max_tokens,
            "temperature": self.load.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.load.extra,
        }
        async with http.stream("POST", f"{self.load.url}/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                asked.error = f"{response.status_code}: {(await response.aread())[:300].decode(errors='replace')}"
                return
            async for event in events(response):
                self.hear(asked, event)

    def hear(self, asked: Asked, event: dict[str, Any]) -> None:
        if "error" in event:
            asked.error = json.dumps(event["error"])[:300]
        for choice in event.get("choices", ()):
            if text := choice.get("delta", {}).get("content"):
                asked.pieces.append((self.now, len(text)))
            asked.finish = choice.get("finish_reason") or asked.finish
        if usage := event.get("usage"):
            asked.prompt_tokens, asked.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
        asked.speculative = event.get("speculative") or asked.speculative


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events, as soon as their line is there."""
    rest = b""
    async for block in response.aiter_raw():
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def drive(load: Load) -> Heard:
    """Run a load in a process of its own. Raises CalledProcessError when that fails."""
    done = subprocess.run(
        [sys.executable, __file__], input=json.dumps(asdict(load)), capture_output=True, text=True, check=True
    )
    heard = json.loads(done.stdout)
    requests = [Asked(**{**r, "pieces": [(t, n) for t, n in r["pieces"]]}) for r in heard.pop("requests")]
    return Heard(requests, **heard)


if __name__ == "__main__":
    found = asyncio.run(Clients(Load(**json.load(sys.stdin))).run())
    json.dump(asdict(found), sys.stdout)
