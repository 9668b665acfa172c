"""The seams: what the loop asks of a model, a drafter and a policy."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from slipstream.core.types import EMPTY_DRAFT, Array, Capabilities, Draft, SamplingParams, Span, StepRecord, Verdict


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
class Saved:
    """A slot's state, to be put back into any slot of the same model or drafter."""

    data: Any
    n_bytes: int


@runtime_checkable
class Resumable(Protocol):
    """A model or drafter whose slots can be put aside between sequences."""

    def save(self, slot: int) -> Saved:
        """What the slot holds. Takes about as long as copying it."""
        ...

    def load(self, slot: int, saved: Saved) -> None:
        """Make it what the slot holds; what was there is lost. Raises RollbackError when it does not go in."""
        ...


class Constraint(Protocol):
    """What one sequence may say, such as a grammar after the tokens committed so far.

    A `path` is drafted tokens behind those; every question about one leaves no trace. A constraint that fails while it
    runs (a limit of its parser) allows end tokens alone and says why in `failure`: other sequences must not suffer.
    """

    @property
    def done(self) -> bool:
        """Nothing may follow but an end token."""
        ...

    @property
    def failure(self) -> str: ...

    def allowed(self, path: Sequence[int] = ()) -> npt.NDArray[np.bool_]:
        """Which tokens may follow `path`, shape (n_vocab,); end tokens where the text may end. Never none at all."""
        ...

    def valid(self, path: Sequence[int]) -> int:
        """How many tokens of `path` may stand there, up to the first that may not."""
        ...

    def forced(self, path: Sequence[int] = ()) -> Sequence[int]:
        """The tokens that are all but certain behind `path`: the only text that may follow, in the usual tokens."""
        ...

    def append(self, token: int) -> None:
        """Commit a token. An end token changes nothing."""
        ...

    def take_back(self, n: int) -> None:
        """Undo the last `n` commits."""
        ...

    def fork(self) -> Constraint:
        """Another one in the same state, which goes its own way."""
        ...


# What is worth checking behind a path, in a forward that reads so many tokens anyway: so many at most.
Hint = Callable[[Sequence[int], int, int], Sequence[int]]
GoOn = Callable[[Sequence[tuple[Hashable, float]]], bool]  # (evidence, claim) of each node of the path so far


@dataclass(frozen=True)
class Want:
    """How much a drafter may propose: nodes in all, depth of the deepest, and children of one node.

    A drafter whose every further token costs a forward asks `go_on` before each one (None: always). One that has
    fallen behind reads the last `read` tokens of what it lacks (0: all), skipped ones included when it may read all
    there are: a draft may be wrong, and reading costs time. Before each of its forwards it asks `hint` what others
    guess behind the path so far: it checks that in the same forward, and has its next token for nothing as long as it
    says the same.
    """

    nodes: int
    depth: int
    width: int = 1
    go_on: GoOn | None = None
    read: int = 0
    hint: Hint | None = None


NOTHING = Want(0, 0)


class Drafter(Protocol):
    """Guesses what comes next in each slot. A wrong guess costs time, never text.

    Some members are optional: `costly` (default False) says that each drafted token costs a forward of a model,
    `takes_hints` (False) that it asks `want.hint` before each, and `lag(slot, n_tokens) -> (int, int)` how many tokens
    it would have to read before it can propose, and how many it has skipped for good. `peek(slot, tokens, path, want)
    -> Draft` is what it would propose once `path` stood behind `tokens`, after a `propose` for these tokens.
    `constrain(slot, constraint)` comes before `begin`, with a fork of the sequence's constraint, where it has one.
    """

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
        """What became of the draft, whoever proposed it. `logits` are the target's rows for the root and each node,
        valid for this call.

        The default of most drafters is to do nothing: `propose` sees the committed tokens.
        """
        ...

    def end(self, slot: int) -> None:
        """The sequence is over: forget it."""
        ...


@runtime_checkable
class Expecting(Protocol):
    """A drafter that can be told, before a sequence begins in `slot`, what it is expected to be like."""

    def expect(self, slot: int, tokens: Sequence[int]) -> None: ...


@dataclass(frozen=True)
class Room:
    """What a policy may know of one slot before drafting."""

    slot: int
    n_tokens: int  # committed tokens, which is the context of the next forward
    left: int  # drafted tokens that could still be delivered
    most: int = 63  # nodes that this slot may add to the forward
    leaves: int = 1  # branches that its tree may have; 1: chains only
    n_vocab: int = 1 << 30
    active: int = 1  # slots that take part in the forward, each with a token of its own


@dataclass(frozen=True)
class Source:
    """What a policy may know of a drafter before asking it."""

    name: str
    costly: bool = False
    lag: int = 0  # tokens that it would have to read first
    skipped: int = 0  # tokens before those, and before what it has read, that it never read
    takes_hints: bool = False


@dataclass(frozen=True)
class Choice:
    """The nodes to verify in one slot; what the policy expects: tokens, and seconds of this forward and a plain one."""

    draft: Draft
    expected: float | None = None
    price_s: float | None = None
    plain_s: float | None = None


PLAIN = Choice(EMPTY_DRAFT)


@dataclass(frozen=True)
class Outcome:
    """What a step gave one slot. `offers` are the drafts as proposed, `said` the tokens that the step added."""

    record: StepRecord
    offers: Sequence[Draft] = ()
    draft: Draft = EMPTY_DRAFT
    said: Sequence[int] = ()
    draft_s: Mapping[str, float] = field(default_factory=dict)  # seconds by drafter
    lag: Mapping[str, int] = field(default_factory=dict)  # tokens that a drafter read in this step


class Policy(Protocol):
    """Decides whom to ask for how much, then which nodes to verify, for all active slots at once.

    `most` is the most it ever asks for. What a policy knows of prices is its own: the loop hands it outcomes only.
    """

    @property
    def most(self) -> Want: ...

    def begin(self, slot: int) -> None:
        """Another sequence starts in the slot."""
        ...

    def want(self, room: Room, source: Source, offers: Sequence[Draft]) -> Want:
        """How much this drafter may propose, knowing what others have; NOTHING leaves it out. Costly ones come last."""
        ...

    def hint(self, room: Room, name: str, read: int, guess: Callable[[], Sequence[Draft]]) -> Sequence[int]:
        """What others `guess` that a costly drafter should check in a forward that reads `read` tokens anyway."""
        ...

    def choose(self, rooms: Sequence[Room], offers: Sequence[Sequence[Draft]]) -> list[Choice]:
        """Per slot, the tree that is worth verifying; no nodes at all is a plain step."""
        ...

    def learn(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        """What the step gave, for each slot, and the seconds of its forward."""
        ...

    def report(self) -> dict[str, str]:
        """A word on each drafter that was asked: active, or paused and why."""
        ...
