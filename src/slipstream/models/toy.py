"""An exact language model of a few tokens, for tests and for people who write drafters.

Its logits are a pure function of the past, so plain and speculative text can be compared exactly and distributions
can be counted. The recurrent flavour keeps a state that cannot be cut, as Mamba-like models do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from slipstream.core.ports import Saved
from slipstream.core.types import Array, Capabilities, Rollback, Span
from slipstream.errors import RollbackError, UsageError

Table = Callable[[Sequence[int]], Array]


def scripted(script: Sequence[int], n_vocab: int, n_prompt: int = 1, sharpness: float = 10.0) -> Table:
    """The token after position `n_prompt + i - 1` is `script[i]`; beyond the script it starts over."""

    def table(past: Sequence[int]) -> Array:
        row = np.zeros(n_vocab, np.float32)
        row[script[(len(past) - n_prompt) % len(script)]] = sharpness
        return row

    return table


def markov(n_vocab: int, order: int = 2, seed: int = 0, spread: float = 2.0) -> Table:
    """Random but fixed logits that depend on the last `order` tokens."""

    def table(past: Sequence[int]) -> Array:
        key = [seed, *past[-order:]]
        return (np.random.default_rng(key).standard_normal(n_vocab) * spread).astype(np.float32)

    return table


def constant(logits: Sequence[float]) -> Table:
    """The same distribution everywhere."""
    row = np.asarray(logits, np.float32)
    return lambda past: row


@dataclass
class _Slot:
    past: list[int] = field(default_factory=list)
    state: int = 0  # recurrent flavour: a checksum of all tokens, which cannot be undone
    span: Span | None = None
    before: int = 0  # the checkpoint


class ToyModel:
    """A table model. `recurrent` with rollback "checkpoint" restores and replays; with "none" it can only go on."""

    def __init__(
        self,
        table: Table,
        n_vocab: int,
        n_ctx: int = 512,
        n_slots: int = 1,
        recurrent: bool = False,
        rollback: Rollback | None = None,
        n_batch: int = 64,
    ) -> None:
        self.table, self.recurrent = table, recurrent
        how: Rollback = rollback or ("checkpoint" if recurrent else "free")
        if recurrent and how == "free":
            raise UsageError("a recurrent state cannot be cut")
        self._caps = Capabilities(
            n_vocab, n_ctx, n_slots, n_batch, trees=not recurrent, rollback=how, max_nodes=32, max_leaves=32
        )
        self._slots = [_Slot() for _ in range(n_slots)]
        self.forwards: list[int] = []  # tokens of each forward, for tests and profiles

    @property
    def caps(self) -> Capabilities:
        return self._caps

    def n_past(self, slot: int) -> int:
        return len(self._slots[slot].past)

    def state(self, slot: int) -> int:
        """Checksum of the slot's recurrent state."""
        return self._slots[slot].state

    def past(self, slot: int) -> list[int]:
        return list(self._slots[slot].past)

    def forward(self, spans: Sequence[Span]) -> list[Array]:
        self.forwards.append(sum(len(s.tokens) for s in spans))
        if self.forwards[-1] > self.caps.n_batch:
            raise UsageError(f"a forward of {self.forwards[-1]} tokens exceeds n_batch {self.caps.n_batch}")
        return [self._evaluate(span) for span in spans]

    def _evaluate(self, span: Span) -> Array:
        slot = self._slots[span.slot]
        if slot.span is not None:
            raise UsageError("keep() must settle a forward before the next one")
        if len(slot.past) + len(span.tokens) > self.caps.n_ctx + self.caps.max_nodes:
            raise UsageError("the slot is full")
        if self.recurrent and list(span.parents) != list(range(-1, len(span.tokens) - 1)):
            raise UsageError("a recurrent model takes chains only")
        if any(not 0 <= t < self.caps.n_vocab for t in span.tokens):
            raise UsageError("a token outside the vocabulary")
        slot.span, slot.before = span, slot.state
        if self.recurrent:
            for token in span.tokens:
                slot.state = _advance(slot.state, token)
        rows = [self.table(slot.past + _path(span, i)) for i in span.want]
        return np.stack(rows) if rows else np.empty((0, self.caps.n_vocab), np.float32)

    def keep(self, slot: int, path: Sequence[int]) -> None:
        s = self._slots[slot]
        if s.span is None:
            raise UsageError("nothing to keep: no forward is open in this slot")
        _check_path(s.span, path)
        kept = [s.span.tokens[i] for i in path]
        if self.recurrent and len(kept) < len(s.span.tokens):
            if self.caps.rollback == "none":
                raise RollbackError("this recurrent model cannot take back rejected tokens", "turn drafting off")
            s.state = s.before
            for token in kept:
                s.state = _advance(s.state, token)
        s.past += kept
        s.span = None

    def truncate(self, slot: int, n_past: int) -> None:
        s = self._slots[slot]
        if n_past > len(s.past):
            raise UsageError(f"cannot cut {len(s.past)} tokens to {n_past}")
        if self.recurrent and 0 < n_past < len(s.past):
            raise RollbackError("a recurrent state cannot be cut", "evaluate the prompt again")
        del s.past[n_past:]
        s.state, s.span = (s.state if n_past else 0), None

    def save(self, slot: int) -> Saved:
        s = self._slots[slot]
        return Saved((tuple(s.past), s.state), 8 * len(s.past) + 8)

    def load(self, slot: int, saved: Saved) -> None:
        past, state = saved.data
        self._slots[slot] = _Slot(list(past), state)

    def close(self) -> None:
        self._slots = []


def _advance(state: int, token: int) -> int:
    return (state * 6364136223846793005 + token + 1442695040888963407) % 2**64


def _path(span: Span, node: int) -> list[int]:
    tokens: list[int] = []
    while node >= 0:
        tokens.append(span.tokens[node])
        node = span.parents[node]
    return tokens[::-1]


def _check_path(span: Span, path: Sequence[int]) -> None:
    before = -1
    for node in path:
        if span.parents[node] != before:
            raise UsageError("the nodes to keep must be a path from the root")
        before = node


class ToyTokenizer:
    """Token `i` is `pieces[i]`; encoding takes the longest piece that fits. Raises UsageError where none does."""

    chat_template: str | None = None
    bos: str = ""
    eos: str = ""
    fim: tuple[int, int, int] | None = None

    def __init__(self, pieces: Sequence[bytes], ends: Sequence[int] = ()) -> None:
        self.pieces, self.ends = list(pieces), frozenset(ends)

    def encode(self, text: str, special: bool = False) -> list[int]:
        data, ids = text.encode(), []
        while data:
            fits = [i for i, p in enumerate(self.pieces) if p and data.startswith(p) and i not in self.ends]
            if not fits:
                raise UsageError(f"the toy vocabulary has no piece for {data[:8]!r}")
            ids.append(max(fits, key=lambda i: len(self.pieces[i])))
            data = data[len(self.pieces[ids[-1]]) :]
        return ids

    def piece(self, token: int) -> bytes:
        return b"" if token in self.ends else self.pieces[token]
