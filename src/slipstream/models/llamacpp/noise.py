"""How much a row of logits depends on what it is evaluated with: 0 means bit for bit the same as alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from slipstream.core.ports import Model
from slipstream.core.types import Array, Span

PAST = 600  # llama.cpp adds up otherwise from 512 tokens on
_TOKENS = 8
_HOLES = 20  # cells that become free: more than what is read at once, fewer than all that comes
ROOM = PAST + _TOKENS


def noise(model: Model) -> dict[str, float]:
    """The largest difference, in logits, of rows one token at a time and in a batch; the model must have two slots.

    "chain": several tokens of a text at once. "tree": with wrong branches between them (left out where the model cannot
    verify trees). "beside": while another text is written in the next slot.
    """
    n = model.caps.n_vocab
    text = [(7 * i * i + 11 * i + 3) % n for i in range(ROOM)]
    past, rest = text[:PAST], text[PAST:]

    def rows(of: Callable[[], list[Array]]) -> Array:
        for slot in (0, 1):
            model.truncate(slot, 0)
        _read(model, 1, past[:_HOLES])  # so that what follows the past lies before it in the cache
        _read(model, 0, past)
        model.truncate(1, 0)
        return np.stack(of())

    alone = rows(lambda: [_step(model, [token])[-1] for token in rest])
    ways = {"chain": lambda: _step(model, rest), "beside": lambda: _beside(model, rest)}
    if model.caps.trees:
        ways["tree"] = lambda: _tree(model, rest)
    return {name: float(np.abs(rows(way) - alone).max()) for name, way in ways.items()}


def _read(model: Model, slot: int, tokens: Sequence[int]) -> None:
    for at in range(0, len(tokens), model.caps.n_batch):
        piece = tokens[at : at + model.caps.n_batch]
        model.forward([Span(slot, piece, range(-1, len(piece) - 1), ())])
        model.keep(slot, range(len(piece)))


def _step(model: Model, tokens: Sequence[int]) -> list[Array]:
    n = len(tokens)
    found = [row.copy() for row in model.forward([Span(0, tokens, range(-1, n - 1), range(n))])[0]]
    model.keep(0, range(n))
    return found


def _tree(model: Model, tokens: Sequence[int]) -> list[Array]:
    """Two tokens at a time, with a wrong one before the second."""
    found = []
    for first, second in zip(tokens[::2], tokens[1::2], strict=True):
        rows = model.forward([Span(0, [first, (second + 1) % model.caps.n_vocab, second], [-1, 0, 0], [0, 2])])[0]
        found += [row.copy() for row in rows]
        model.keep(0, [0, 2])
    return found


def _beside(model: Model, tokens: Sequence[int]) -> list[Array]:
    _read(model, 1, tokens)
    found = []
    for token in tokens:
        rows = model.forward([Span(1, [token, token], [-1, 0], ()), Span(0, [token], [-1], [0])])
        found.append(rows[1][0].copy())
        model.keep(1, [0, 1])
        model.keep(0, [0])
    return found
