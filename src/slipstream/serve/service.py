"""What the routes share: the engine and what is known of it, names of the model, and the bytes of its tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from slipstream import __version__
from slipstream.aio import AsyncEngine
from slipstream.core.sequence import Token
from slipstream.engine import Engine
from slipstream.errors import EngineFailure
from slipstream.serve import watchdog
from slipstream.serve.failures import FieldError
from slipstream.serve.options import ServeOptions

T = TypeVar("T")
DEFAULT = "default"
_CALL_SECONDS = 60.0  # for what the owning thread does between two steps
_ALTERNATIVES = 4096  # pieces that are asked for at once, at most


@dataclass(frozen=True)
class Facts:
    """What never changes while an engine is open."""

    name: str
    n_ctx: int
    n_vocab: int
    slots: int
    drafters: tuple[str, ...]
    verify: str
    template: str | None
    fim: tuple[int, int, int] | None
    start: tuple[int, ...]  # what the model has before every text
    bos: str

    @classmethod
    def of(cls, engine: Engine) -> Facts:
        t, caps = engine.tokenizer, engine.model.caps
        return cls(
            engine.name,
            caps.n_ctx,
            caps.n_vocab,
            caps.n_slots,
            tuple(d.name for d in engine.drafters),
            engine.verify,
            t.chat_template,
            t.fim,
            tuple(t.encode("", special=True)),
            t.bos,
        )

    @property
    def stem(self) -> str:
        return Path(self.name).stem if self.name.endswith(".gguf") else self.name


class Service:
    """One server's. Everything that touches the tokenizer runs in the thread that owns it."""

    def __init__(self, engine: AsyncEngine, options: ServeOptions) -> None:
        self.engine, self.options = engine, options
        self.created = int(time.time())
        self.pieces = Pieces(self)
        self._facts: Facts | None = None

    async def call(self, function: Callable[[Engine], T]) -> T:
        """Raises EngineFailure when the owning thread does not come to it."""
        try:
            seconds = min(_CALL_SECONDS, self.options.stall_seconds)
            return await asyncio.wait_for(self.engine.call(function), seconds)
        except (asyncio.TimeoutError, TimeoutError):
            raise EngineFailure("the models' thread does not answer", "see /health") from None

    @asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """The application's life: what it knows of the engine is asked for before the first request, and not by it."""
        await self.facts()
        yield

    async def facts(self) -> Facts:
        if self._facts is None:
            self._facts = await self.call(Facts.of)
        return self._facts

    # -- names of the model ----------------------------------------------------------------------------------------

    async def names(self) -> tuple[str, ...]:
        """The model's own name, then all others that it answers to."""
        facts = await self.facts()
        return tuple(dict.fromkeys((facts.stem, *self.options.aliases, facts.name, DEFAULT)))

    async def check_model(self, name: str | None) -> None:
        """Raises FieldError, 404, for a model that is not here."""
        names = await self.names()
        if name is not None and name not in names:
            raise FieldError(
                "model",
                f"there is no model {name}; there are {', '.join(names)}",
                "another name can be given to the server with --alias",
                "model_not_found",
                404,
            )

    async def models(self) -> dict[str, Any]:
        facts = await self.facts()
        return {"object": "list", "data": [self._model(n) for n in dict.fromkeys((facts.stem, *self.options.aliases))]}

    async def model(self, name: str) -> dict[str, Any]:
        await self.check_model(name)
        return self._model(name)

    def _model(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self.created, "owned_by": "slipstream"}

    # -- state -----------------------------------------------------------------------------------------------------

    def health(self) -> tuple[int, dict[str, Any]]:
        """Status and body; never waits for the owning thread."""
        state = self.engine.state
        status, reason = watchdog.health(state, self.options.stall_seconds)
        if status != "ok":
            return 503, {"status": status, "reason": reason}
        return 200, {"status": "ok", "slots": state.slots, "active": state.active, "waiting": state.waiting}

    async def props(self) -> dict[str, Any]:
        facts = await self.facts()
        status, prices = await self.call(lambda e: (e.status, e.prices()))
        return {
            "model": facts.name,
            "n_ctx": facts.n_ctx,
            "slots": facts.slots,
            "speculative": status,
            "prices": prices,
            "chat_template": facts.template,
            "version": __version__,
        }

    # -- tokens ----------------------------------------------------------------------------------------------------

    async def encode(self, text: str, start: bool, special: bool) -> list[int]:
        """Tokens of a text, with what the model has before every text or without it."""
        facts = await self.facts()
        ids = await self.call(lambda e: e.tokenizer.encode(text, special))
        n = len(facts.start)
        written = special and bool(facts.bos) and text.startswith(facts.bos)
        if not start and not written and tuple(ids[:n]) == facts.start:
            return ids[n:]
        return ids

    async def check_ids(self, ids: Iterable[int], param: str) -> None:
        most = (await self.facts()).n_vocab
        if any(not 0 <= i < most for i in ids):
            raise FieldError(param, "a token id lies outside the vocabulary", f"ids go from 0 to {most - 1}")

    async def text(self, ids: Iterable[int]) -> str:
        ids = list(ids)
        await self.pieces.learn(ids)
        return b"".join(self.pieces[i] for i in ids).decode("utf-8", "replace")

    async def with_pieces(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Each token with its text, or its bytes where they are no whole characters."""
        await self.pieces.learn(ids)
        return [{"id": i, "piece": _piece(self.pieces[i])} for i in ids]


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


class Pieces:
    """Bytes of tokens, asked for once."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        return self._known[token]

    async def learn(self, ids: Iterable[int]) -> None:
        new = [i for i in dict.fromkeys(ids) if i not in self._known]
        for at in range(0, len(new), _ALTERNATIVES):
            some = new[at : at + _ALTERNATIVES]
            pieces = await self._service.call(lambda e, some=some: [e.tokenizer.piece(i) for i in some])  # type: ignore[misc]
            self._known.update(zip(some, pieces, strict=True))

    async def learn_all(self, tokens: Iterable[Token]) -> None:
        """The tokens and what could have stood in their place."""
        await self.learn(i for t in tokens for i in (t.id, *(other for other, _ in t.top_logprobs)))
