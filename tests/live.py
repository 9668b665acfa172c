"""A real server on a real socket, for tests: `with live(toy()) as url: ...`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from helpers import cached, make_drafter
from slipstream.core.policy import Fixed
from slipstream.core.ports import Drafter
from slipstream.core.types import Array
from slipstream.engine import Engine
from slipstream.models.toy import Table, ToyModel, ToyTokenizer
from slipstream.serve.options import ServeOptions
from slipstream.serve.run import Server

OpenEngine = Callable[[], Engine]
END = 256  # the toy's tokens are the bytes, so that it reads any text, and this one
VOCABULARY = 257
_SAID = np.frombuffer(b"abcdefgh \n", np.uint8)  # what the toy likes to say


@contextmanager
def live(open_engine: OpenEngine, **options: Any) -> Iterator[str]:
    """The base URL of a server on loopback; `options` are those of ServeOptions."""
    options = {"port": 0, "drain_seconds": 0.2, **options}
    server = Server(open_engine, ServeOptions(**options))
    url = server.start()
    try:
        yield url
    finally:
        server.stop()


def letters(seed: int = 0, end: float = -2.0) -> Table:
    """Random but fixed logits by the last two tokens: a few letters, and with the logit `end` an end token."""

    def table(past: Sequence[int]) -> Array:
        row = np.full(VOCABULARY, -30.0, np.float32)
        draw = np.random.default_rng([seed, *past[-2:]]).standard_normal(len(_SAID))
        row[_SAID] = draw * 2
        row[END] = end
        return row

    return cached(table, 2)


def toy(
    drafter: str | Drafter | Sequence[Drafter] | None = "suffix",
    n_slots: int = 4,
    n_ctx: int = 512,
    k: int = 4,
    table: Table | None = None,
    template: str | None = None,
    fim: tuple[int, int, int] | None = None,
    pieces: Sequence[bytes] | None = None,
    ends: Sequence[int] | None = None,
    name: str = "toy.gguf",
    **settings: Any,
) -> OpenEngine:
    """Opens an exact model of the 256 bytes (or of `pieces`) that says a few letters (or follows `table`)."""
    pieces = [*(bytes([b]) for b in range(256)), b""] if pieces is None else pieces
    table = table or letters()
    ends = [END] if ends is None else ends

    def open_engine() -> Engine:
        made = make_drafter(drafter, table, len(pieces), n_ctx, n_slots) if isinstance(drafter, str) else drafter
        tokenizer = ToyTokenizer(pieces, ends)
        tokenizer.chat_template, tokenizer.fim = template, fim
        return Engine(ToyModel(table, len(pieces), n_ctx, n_slots), tokenizer, made, Fixed(k), name=name, **settings)

    return open_engine


def smollm2(draft: str | None = "suffix,predicted", n_slots: int = 4, **settings: Any) -> OpenEngine:
    """Opens the embedded model, with a fixed draft length unless the settings say otherwise."""
    settings = {"n_ctx": 1024, **({} if "policy" in settings else {"k": 4}), **settings}
    return lambda: Engine.open("smollm2-135m", draft, n_slots=n_slots, **settings)
