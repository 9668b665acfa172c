"""The seams: what the loop asks of a model, a drafter and a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from slipstream.core.types import Array, Capabilities, Draft, SamplingParams, Span, StepRecord, Verdict


@runtime_checkable
class Model(Protocol):
    """A causal language model with several independent sequences ("slots")."""

    @property
    def caps(self) -> Capabilities: ...

    def forward(self, spans: Sequence[Span]) -> list[Array]:
        """Evaluate each slot's new tokens; per span the wanted logits rows, shape (len(want), n_vocab), float32.

        Rows may be views that the next forward overwrites. Every span must be settled by `keep` before the next
        forward of its slot.
        """
        ...

    def keep(self, slot: int, path: Sequence[int]) -> None:
        """Make these nodes of the last span (a path from its root) the slot's past; the others vanish."""
        ...

    def truncate(self, slot: int, n_past: int) -> None:
        """Cut the slot's past to its first `n_past` tokens. Raises RollbackError if it cannot; never ignores."""
        ...

    def n_past(self, slot: int) -> int: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Want:
    """How much a drafter may propose: nodes in all, depth of the deepest, and children of one node."""

    nodes: int
    depth: int
    width: int = 1


class Drafter(Protocol):
    """Guesses what comes next in each slot. A wrong guess costs time, never text."""

    name: str

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams, cached: int = 0) -> None:
        """A sequence starts in `slot`; `tokens` is its prompt.

        Of the slot's earlier sequence nothing may be left beyond its first `cached` tokens, which the target keeps too.
        """
        ...

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        """A draft that continues `tokens` (all committed tokens; it only ever grows by appending)."""
        ...

    def observe(self, slot: int, draft: Draft, verdict: Verdict, logits: Array | None) -> None:
        """What became of the draft. `logits` are the target's rows for the root and each node, valid for this call.

        The default of most drafters is to do nothing: `propose` sees the committed tokens.
        """
        ...

    def end(self, slot: int) -> None:
        """The sequence is over: forget it."""
        ...


@dataclass(frozen=True)
class Room:
    """What a policy may know of one slot before drafting."""

    slot: int
    n_tokens: int  # committed tokens, which is the context of the next forward
    left: int  # drafted tokens that could still be delivered
    drafter: str


class Policy(Protocol):
    """Decides how much to draft, then which nodes to verify, for all active slots at once.

    `most` is the most it ever asks for. What a policy knows of prices is its own: the loop hands it records, not costs.
    """

    @property
    def most(self) -> Want: ...

    def plan(self, rooms: Sequence[Room]) -> list[Want]:
        """Per slot, how much may be proposed; `Want(0, 0)` is a plain step."""
        ...

    def choose(self, rooms: Sequence[Room], drafts: Sequence[Draft]) -> list[Draft]:
        """Per slot, the part of the draft that is worth verifying."""
        ...

    def learn(self, records: Sequence[StepRecord]) -> None:
        """What the step gave and cost."""
        ...
