"""The nouns of a step: drafts, verdicts, spans, settings and records."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from slipstream.errors import InputError, UsageError

Array = npt.NDArray[np.float32]
Rollback = Literal["free", "checkpoint", "none"]
PAD = "pad"  # origin of tokens that only bring a forward up to a cheaper size
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Draft:
    """A token tree; a chain is a tree. Node `i` follows node `parents[i]` (-1: the last committed token).

    Parents come before their children, and the likeliest path comes first, so that it lies in consecutive cache
    cells. `q[i]` is the distribution that node `i` was drawn from, given that its earlier siblings were not it:
    shape (n_vocab,), or None when the node was not drawn but chosen (a distribution with all its mass on it).
    `prob[i]` is the drafter's own estimate of P(node accepted | parent accepted); `origin[i]` says who proposed it.
    `evidence[i]` is a small label of what that estimate rests on (a match's length, a confidence): nodes of one drafter
    with the same label are judged together. Where `q[i]` is given, neither may depend on the token that was drawn.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    prob: tuple[float, ...] = ()
    origin: tuple[str, ...] = ()
    q: tuple[Array | None, ...] = ()
    evidence: tuple[Hashable, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if len(self.parents) != n or any(not -1 <= p < i for i, p in enumerate(self.parents)):
            raise UsageError("a draft's parents must come before their children, one for each token")
        for name, filler in (("prob", 1.0), ("origin", "draft"), ("q", None), ("evidence", None)):
            given = getattr(self, name)
            if not given:
                object.__setattr__(self, name, (filler,) * n)
            elif len(given) != n:
                raise UsageError(f"a draft's {name} needs one entry for each token")

    @classmethod
    def chain(
        cls,
        tokens: Sequence[int],
        origin: str = "draft",
        q: Sequence[Array | None] = (),
        prob: Sequence[float] = (),
        evidence: Sequence[Hashable] = (),
    ) -> Draft:
        n = len(tokens)
        return cls(tuple(tokens), tuple(range(-1, n - 1)), tuple(prob), (origin,) * n, tuple(q), tuple(evidence))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.tokens) - 1))

    def depths(self) -> list[int]:
        """Depth of each node; the first drafted position is 1."""
        depth: list[int] = []
        for p in self.parents:
            depth.append(1 if p < 0 else depth[p] + 1)
        return depth

    def children(self) -> list[list[int]]:
        """Children of the root at index 0 and of node `i` at index `i + 1`, in the order in which they were drawn."""
        kids: list[list[int]] = [[] for _ in range(len(self.tokens) + 1)]
        for i, p in enumerate(self.parents):
            kids[p + 1].append(i)
        return kids

    def select(self, nodes: Sequence[int]) -> Draft:
        """The draft cut to `nodes`, which must hold every node's parent; order is kept as given."""
        place = {-1: -1} | {old: new for new, old in enumerate(nodes)}
        if any(self.parents[i] not in place for i in nodes):
            raise UsageError("a node cannot be kept without its parent")
        every = list(zip(self.tokens, self.parents, self.prob, self.origin, self.q, self.evidence, strict=True))
        pick = [(t, place[p], *rest) for t, p, *rest in (every[i] for i in nodes)]
        return Draft(*zip(*pick, strict=True)) if pick else EMPTY_DRAFT

    def spine(self) -> Draft:
        """The likeliest path alone: each node's first child."""
        kids, nodes, node = self.children(), [], -1
        while kids[node + 1]:
            node = kids[node + 1][0]
            nodes.append(node)
        return self if len(nodes) == len(self.tokens) else self.select(nodes)

    def limit(self, nodes: int, depth: int, leaves: int | None = None, n_vocab: int | None = None) -> Draft:
        """The first `nodes` nodes that are not deeper than `depth`, end in at most `leaves` branches and are tokens of
        the vocabulary; itself when nothing has to go."""
        kept: dict[int, int] = {-1: 0}  # node -> depth
        parents: set[int] = set()
        branches = 1
        for i, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if len(kept) > nodes:
                break
            if parent not in kept or kept[parent] >= depth or (n_vocab is not None and not 0 <= token < n_vocab):
                continue
            if parent in parents:  # a sibling begins another branch
                if leaves is not None and branches >= leaves:
                    continue
                branches += 1
            parents.add(parent)
            kept[i] = kept[parent] + 1
        del kept[-1]
        return self if len(kept) == len(self.tokens) else self.select(list(kept))


EMPTY_DRAFT = Draft()


@dataclass(frozen=True)
class Span:
    """New tokens of one slot for a forward: a tree over the slot's past (`parents[i] == -1`: its end).

    `want` lists the indices of the tokens whose logits are asked for.
    """

    slot: int
    tokens: Sequence[int]
    parents: Sequence[int]
    want: Sequence[int]


@dataclass(frozen=True)
class Capabilities:
    """What a model can do. `rollback` says how rejected tokens leave its state: cut away, by a checkpoint, or not."""

    n_vocab: int
    n_ctx: int  # tokens a slot may hold, prompt and output together
    n_slots: int
    n_batch: int  # most tokens in one forward, all slots together
    trees: bool
    rollback: Rollback
    max_nodes: int = 63  # drafted tokens that one slot may add to a forward
    max_leaves: int = 1  # branches that one slot's tree may have


@dataclass(frozen=True)
class SamplingParams:
    """How a token is chosen from logits. Applied in this order, each at every drafted position as in plain decoding:

    logit bias; repetition penalty (prompt and output), presence and frequency penalties (output); temperature;
    top-k; top-p; min-p. Defaults change nothing: greedy (temperature 0), no filter, no penalty.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        ranges: dict[str, tuple[float, float]] = {
            "temperature": (0.0, 100.0),
            "top_k": (0, 2**31),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "repetition_penalty": (0.01, 100.0),
            "presence_penalty": (-100.0, 100.0),
            "frequency_penalty": (-100.0, 100.0),
            "seed": (0, 2**64 - 1),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:  # also refuses NaN
                raise InputError(f"{name} is {value}", f"it must lie between {low:g} and {high:g}")
        if self.top_p == 0:
            raise InputError("top_p is 0", "it must be above 0; 1 switches it off")
        if self.logit_bias and min(self.logit_bias) < 0:
            raise InputError(f"a logit bias is on token {min(self.logit_bias)}", "token ids are 0 or more")
        if any(not -1e6 <= b <= 1e6 for b in self.logit_bias.values()):
            raise InputError("a logit bias is not a finite number", "use -100 to ban a token, 100 to force one")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True)
class Verdict:
    """What a verifier said: the accepted nodes from the root down, and the token that the target adds after them."""

    path: tuple[int, ...]
    token: int


@dataclass(frozen=True)
class StepRecord:
    """One slot's share of one step. Counts are of tokens, times are seconds of the whole step."""

    slot: int
    position: int  # tokens before this step, prompt included
    prefilled: int  # prompt tokens evaluated in this step
    proposed: int  # drafted tokens that a drafter offered
    verified: int  # of these, evaluated by the target
    accepted: int  # of these, kept
    emitted: int  # accepted plus the target's own token, up to an end token
    depth: int  # drafted positions verified along the longest path
    accepted_origins: tuple[str, ...] = ()
    verified_origins: Mapping[str, int] = field(default_factory=dict)
    padded: int = 0  # tokens that only filled the forward up to a cheaper size; in no other count
    expected: float | None = None  # tokens that the policy expected of this step, the target's own included
    price_s: float | None = None  # seconds that it expected the forward to take, and a plain one
    plain_s: float | None = None
    draft_s: float = 0.0
    forward_s: float = 0.0
    verify_s: float = 0.0

    @property
    def discarded(self) -> int:
        return self.proposed - self.verified

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "verified_origins": dict(self.verified_origins), "discarded": self.discarded}
