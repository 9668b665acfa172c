"""Drafts from a smaller model with the same vocabulary; its cache follows the target's sequence.

The way it chooses suits the verifier: for `exact` with the target's own keyed noise (at temperature 0: its largest
logit), so that it says what the target would say; for the sampling verifiers by drawing with noise of its own, and the
distribution drawn from goes along as `q`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from slipstream.core import noise
from slipstream.core.ports import Model, Want
from slipstream.core.sampling import Probs, Sampler
from slipstream.core.types import EMPTY_DRAFT, Array, Draft, SamplingParams, Span, Verdict

Choice = Literal["keyed", "sampled"]


@dataclass
class _Slot:
    sampler: Sampler
    seen: list[int] = field(default_factory=list)  # what the draft model's cache holds
    fed: int = 0  # committed tokens that the sampler's penalties know
    synced: int = 0  # committed tokens that are known to stand in `seen`


@dataclass(frozen=True)
class _Option:
    token: int
    prob: float
    q: Array | None


class ModelDrafter:
    """`n_shared`: ids from here on are padding and never drafted; `n_target`: the target's rows, padding included.

    Branches of a tree are siblings of the main chain's nodes."""

    name = "model"

    def __init__(
        self, model: Model, choice: Choice = "keyed", n_shared: int | None = None, n_target: int | None = None
    ) -> None:
        self.model, self.choice = model, choice
        self.n_shared = n_shared or model.caps.n_vocab
        self.n_target = n_target or model.caps.n_vocab
        self._slots: dict[int, _Slot] = {}

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams, cached: int = 0) -> None:
        kept = self._slots[slot].seen if slot in self._slots else []
        if not kept or len(kept) != self.model.n_past(slot):  # interrupted, or somebody else has used the slot
            self.model.truncate(slot, 0)
            kept = []
        self._slots[slot] = _Slot(Sampler(params, tokens), kept, len(tokens))
        self._cut(slot, min(cached, len(kept)))

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        s = self._slots[slot]
        for token in tokens[s.fed :]:
            s.sampler.append(token)
        s.fed = len(tokens)
        depth = min(want.depth, want.nodes, self.model.caps.n_ctx - len(tokens))
        if depth <= 0 or any(t >= self.model.caps.n_vocab for t in tokens[s.synced :]):
            return EMPTY_DRAFT
        row = self._catch_up(slot, s, tokens)
        levels: list[list[_Option]] = []
        path: list[int] = []
        for i in range(depth):
            levels.append(self._options(s, row, path, len(tokens) + i, len(tokens), want.width))
            path.append(levels[-1][0].token)
            if i + 1 < depth:
                row = self._forward(slot, s, path[-1:])
        return _tree(levels, want.nodes, self.name, self.choice == "keyed")

    def _catch_up(self, slot: int, s: _Slot, tokens: Sequence[int]) -> Array:
        """Bring the cache to the committed tokens; the row after the last one."""
        same, most = s.synced, min(len(s.seen), len(tokens) - 1)
        while same < most and s.seen[same] == tokens[same]:
            same += 1
        self._cut(slot, same)
        n_batch = self.model.caps.n_batch
        while len(tokens) - len(s.seen) > n_batch:
            self._forward(slot, s, tokens[len(s.seen) : len(s.seen) + n_batch])
        row = self._forward(slot, s, tokens[len(s.seen) :])
        s.synced = len(tokens)
        return row

    def _cut(self, slot: int, n: int) -> None:
        s = self._slots[slot]
        if n < len(s.seen):
            if self.model.caps.rollback != "free":
                n = 0
            self.model.truncate(slot, n)
            del s.seen[n:]

    def _forward(self, slot: int, s: _Slot, new: Sequence[int]) -> Array:
        n = len(new)
        rows = self.model.forward([Span(slot, new, range(-1, n - 1), (n - 1,))])[0]
        self.model.keep(slot, range(n))
        s.seen += new
        row: Array = rows[0][: self.n_shared]
        return row

    def _options(
        self, s: _Slot, row: Array, path: Sequence[int], position: int, root: int, width: int
    ) -> list[_Option]:
        """Up to `width` different tokens, the one to go on with first."""
        params = s.sampler.params
        if params.greedy:
            return _best(s.sampler.adjusted(row, path), width)
        f = s.sampler.filtered(row, path)
        own = self.choice == "sampled"
        key = (noise.DRAFT, position, f.ids, root) if own else (noise.TARGET, position, f.ids)
        scores = f.scores + noise.gumbel(params.seed, *key)
        probs = f.probs()
        order = np.argsort(-scores, kind="stable")[:width]
        options, left = [], probs.copy()
        for i in order:  # Gumbel top-k draws without replacement: each from what the earlier ones left
            total = left.sum()
            if own and total <= 0:
                break
            q = _spread(left / total, f.ids, self.n_target) if own else None
            options.append(_Option(int(f.ids[i]), float(probs[i]), q))
            left[i] = 0.0
        return options

    def observe(self, slot: int, draft: Draft, verdict: Verdict, logits: Array | None) -> None:
        return None

    def end(self, slot: int) -> None:
        """Nothing to do: the next `begin` says how much of the cache may stay."""
        return None


def _best(row: Array, width: int) -> list[_Option]:
    """The largest logits, largest first; probabilities only where branches have to be compared."""
    top = int(row.argmax())
    if width == 1:
        return [_Option(top, 1.0, None)]
    ids = np.argpartition(row, row.size - width)[row.size - width :]
    ids = ids[np.argsort(-row[ids], kind="stable")]
    norm = float(np.exp(row - row[top], dtype=np.float64).sum())
    return [_Option(int(i), float(np.exp(row[i] - row[top])) / norm, None) for i in ids]


def _spread(probs: Probs, ids: np.ndarray, n_vocab: int) -> Array:
    q = np.zeros(n_vocab, np.float32)
    q[ids] = probs
    return q


def _tree(levels: Sequence[Sequence[_Option]], n_nodes: int, origin: str, by_probability: bool) -> Draft:
    """The chain of first options, with as many of the others as leaves as there is room for.

    Which siblings are taken may depend on probabilities only when nothing was drawn at random; else their order counts.
    """
    depth = len(levels)
    spare = [(i, j) for i, level in enumerate(levels) for j in range(1, len(level))]
    if by_probability:
        reach = np.cumprod([1.0, *(level[0].prob for level in levels)])
        spare.sort(key=lambda e: (-reach[e[0]] * levels[e[0]][e[1]].prob, e))
    leaves = sorted(spare[: max(n_nodes - depth, 0)])
    nodes = [(i - 1, level[0]) for i, level in enumerate(levels)] + [(i - 1, levels[i][j]) for i, j in leaves]
    return Draft(
        tuple(o.token for _, o in nodes),
        tuple(p for p, _ in nodes),
        tuple(o.prob for _, o in nodes),
        (origin,) * len(nodes),
        tuple(o.q for _, o in nodes),
    )
