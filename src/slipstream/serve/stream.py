"""Answers that come as server-sent events: a chunk for each step of each choice, as cheap as can be."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from slipstream.errors import SlipstreamError
from slipstream.generation import Generation
from slipstream.serve import account, answers
from slipstream.serve.answers import Kind
from slipstream.serve.choices import Choice
from slipstream.serve.failures import encoded, explain
from slipstream.serve.hangup import Gone, unless_gone
from slipstream.serve.prepare import Plan
from slipstream.serve.service import Service
from slipstream.worker import Event

log = logging.getLogger("slipstream")
DONE = b"data: [DONE]\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
Json = dict[str, Any]


class EventStream(Response):
    """Sends `first`, then what `parts` gives; closes it at once when the client hangs up. An error ends it."""

    def __init__(self, first: bytes, parts: AsyncGenerator[bytes, None]) -> None:
        super().__init__(None, 200, _HEADERS, "text/event-stream")
        del self.headers["content-length"]
        self._first, self._parts = first, parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._parts):
            try:
                await unless_gone(self._send(send), receive)
            except Gone:
                return

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        part = self._first
        while part:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            part = await self._next()
        await send({"type": "http.response.body", "body": b""})

    async def _next(self) -> bytes:
        try:
            return await anext(self._parts, b"")
        except Exception as e:
            if not isinstance(e, SlipstreamError):
                log.exception("a stream failed")
            return _event(explain(e)[1])


async def begun(service: Service, plan: Plan, kind: Kind) -> EventStream:
    """The answer, once the engine has taken the request: what it refuses is raised here, before any header."""
    parts = _parts(service, plan, kind)
    return EventStream(await anext(parts), parts)


async def _parts(service: Service, plan: Plan, kind: Kind) -> AsyncGenerator[bytes, None]:
    stream = _Stream(service, plan, kind, await answers.head(service, kind, stream=True))
    async with answers.events(service, plan) as running:
        async for batch in running:
            if plan.logprobs:
                await service.pieces.learn_all(t for e in batch if e.chunk for t in e.chunk.tokens)
            if part := b"".join(map(stream.take, batch)):
                yield part
    yield stream.end()


class _Stream:
    """Turns events of the engine into bytes."""

    def __init__(self, service: Service, plan: Plan, kind: Kind, head: Json) -> None:
        self._pieces, self._plan, self._kind = service.pieces, plan, kind
        self._head = {**head, "usage": None} if plan.include_usage else head
        self._choices: dict[int, Choice] = {}
        self._generations: dict[int, Generation] = {}
        self._left = len(plan.requests)

    def take(self, event: Event) -> bytes:
        index, chunk, out = event.index, event.chunk, []
        if index not in self._choices:
            self._choices[index] = self._kind.choice(index, self._plan, self._pieces)
            self._generations[index] = event.generation
            out += [self._chunk(c) for c in self._choices[index].first()]
        choice = self._choices[index]
        if chunk is None:
            self._left -= 1
            new = choice.last(event.generation.result().finish_reason)
        else:
            new = choice.more(chunk.text, chunk.tokens)
        if self._plan.detail:
            new = new or [choice.blank()]
        last = len(new) - 1
        for i, c in enumerate(new):
            extra: Json = {}
            if self._plan.detail:
                extra = account.detail(chunk if i == 0 else None)
            if chunk is None and not self._left and i == last:
                extra = {**self._spent(), **extra}
            out.append(self._chunk(c, extra))
        return b"".join(out)

    def end(self) -> bytes:
        if not self._plan.include_usage:
            return DONE
        spent = account.usage(self._plan, self._results())
        return _event({**self._head, "choices": [], "usage": spent}) + DONE

    def _results(self) -> list[Any]:
        return [self._generations[i].result() for i in range(len(self._plan.requests))]

    def _spent(self) -> Json:
        return account.speculative(self._plan, self._results(), answers.failures(self._generations))

    def _chunk(self, choice: Json, extra: Json | None = None) -> bytes:
        content = {**self._head, "choices": [choice]}
        return _event({**content, "speculative": extra} if extra else content)


def _event(content: Json) -> bytes:
    return b"data: " + encoded(content) + b"\n\n"
