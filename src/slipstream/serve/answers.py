"""The two kinds of answers, and the whole ones: run to the end, then one object."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from slipstream import __version__
from slipstream.generation import Generation
from slipstream.serve import account
from slipstream.serve.choices import ChatChoice, Choice, TextChoice
from slipstream.serve.prepare import Plan
from slipstream.serve.service import Pieces, Service
from slipstream.worker import Event


@dataclass(frozen=True)
class Kind:
    """What an answer's objects are called, and how its choices look."""

    prefix: str
    object: str
    chunk: str
    choice: Callable[[int, Plan, Pieces], Choice]


CHAT = Kind("chatcmpl", "chat.completion", "chat.completion.chunk", ChatChoice)
TEXT = Kind("cmpl", "text_completion", "text_completion", TextChoice)


async def head(service: Service, kind: Kind, stream: bool = False) -> dict[str, Any]:
    """What every object of one answer begins with."""
    return {
        "id": f"{kind.prefix}-{secrets.token_hex(16)}",
        "object": kind.chunk if stream else kind.object,
        "created": int(time.time()),
        "model": (await service.facts()).stem,
        "system_fingerprint": f"slipstream-{__version__}",
    }


def events(service: Service, plan: Plan) -> aclosing[AsyncGenerator[list[Event], None]]:
    """What the engine makes of the plan; leaving the block ends it at once."""
    return aclosing(service.engine.batches(plan.requests))


async def whole(service: Service, plan: Plan, kind: Kind) -> dict[str, Any]:
    """Raises what AsyncEngine.run does."""
    generations: dict[int, Generation] = {}
    async with events(service, plan) as running:
        async for batch in running:
            generations.update((event.index, event.generation) for event in batch)
    results = [generations[i].result() for i in range(len(plan.requests))]
    if plan.logprobs:
        await service.pieces.learn_all(t for r in results for t in r.tokens)
    choices = []
    for i, result in enumerate(results):
        choice = kind.choice(i, plan, service.pieces).whole(result)
        if plan.detail:
            choice["speculative"] = {"segments": account.segments(result.segments)}
        choices.append(choice)
    spent = account.speculative(plan, results, failures(generations))
    if plan.detail:
        spent["segments"] = account.segments([s for r in results for s in r.segments])
    return {
        **await head(service, kind),
        "choices": choices,
        "usage": account.usage(plan, results),
        "speculative": spent,
    }


def failures(generations: Mapping[int, Generation]) -> list[str]:
    """What the grammars of the choices could not do."""
    constraints = [g.sequence.constraint for g in generations.values()]
    return [c.failure for c in constraints if c is not None]
