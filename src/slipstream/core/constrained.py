"""Drafts under a constraint: what it forbids is taken out before anybody judges it, what it forces is put in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from slipstream.core.merge import depth_first
from slipstream.core.ports import Constraint
from slipstream.core.types import Array, Draft

GRAMMAR = "grammar"  # origin of forced tokens
_CLAIM = 0.97  # the model may write the same text in other tokens
_EVIDENCE = "forced"

Mask = npt.NDArray[np.bool_]


def forced(constraint: Constraint, path: Sequence[int] = ()) -> Draft:
    """A chain of what can only follow `path`."""
    tokens = constraint.forced(path)
    n = len(tokens)
    return Draft.chain(tokens, GRAMMAR, prob=[_CLAIM] * n, evidence=[_EVIDENCE] * n)


def behind(draft: Draft, tail: Draft) -> Draft:
    """One draft after another: the tail's roots follow the last node of a chain."""
    n = len(draft)
    parents = tuple(p + n if p >= 0 else n - 1 for p in tail.parents)
    return Draft(
        draft.tokens + tail.tokens,
        draft.parents + parents,
        draft.prob + tail.prob,
        draft.origin + tail.origin,
        draft.q + tail.q,
        draft.evidence + tail.evidence,
    )


def permitted(draft: Draft, constraint: Constraint, ends: frozenset[int], path: Sequence[int] = ()) -> Draft:
    """The nodes that may stand behind `path`. An end token that must come next is left out too: nobody has to guess it.

    What was drawn keeps its promise: a node's `q` becomes the distribution that it was drawn from given that it is
    allowed. Of siblings drawn without regard to the constraint only the first allowed one is kept, since how many
    there are depends on what was drawn.
    """
    if draft.is_chain and all(q is None for q in draft.q):
        n = constraint.valid([*path, *draft.tokens]) - len(path)
        end = next((i for i, token in enumerate(draft.tokens[: max(n, 0)]) if token in ends), None)
        if end is not None and _must_end(constraint.allowed([*path, *draft.tokens[:end]]), ends):
            n = end
        return draft if n == len(draft) else draft.select(range(max(n, 0)))
    return _Pruned(draft, constraint, ends).below(path)


class _Pruned:
    """Walks a tree depth first, so that a constraint moves by one token at a time."""

    def __init__(self, draft: Draft, constraint: Constraint, ends: frozenset[int]) -> None:
        self.whole, self.draft = draft, depth_first(draft)
        self.constraint, self.ends = constraint, ends
        self.kids = self.draft.children()
        self.kept: list[int] = []
        self.q: dict[int, Array] = {}

    def below(self, path: Sequence[int]) -> Draft:
        todo = [(node, list(path)) for node in self._allowed(-1, path)[::-1]]
        while todo:
            node, before = todo.pop()
            self.kept.append(node)
            here = [*before, self.draft.tokens[node]]
            todo += [(child, here) for child in self._allowed(node, here)[::-1]]
        if not self.q and len(self.kept) == len(self.draft):
            return self.whole
        q = tuple(self.q.get(i, one) for i, one in enumerate(self.draft.q))
        return replace(self.draft, q=q).select(self.kept)

    def _allowed(self, node: int, path: Sequence[int]) -> list[int]:
        """Children that may stand there."""
        children, draft = self.kids[node + 1], self.draft
        if not children or (node >= 0 and draft.tokens[node] in self.ends):
            return []
        mask = self.constraint.allowed(path)
        if _must_end(mask, self.ends):
            return []
        kept = [i for i in children if 0 <= draft.tokens[i] < mask.size and mask[draft.tokens[i]]]
        first = draft.q[children[0]]
        if first is None or not _mass(first, ~mask):
            return kept
        for i in kept[:1]:
            drawn = draft.q[i]
            assert drawn is not None
            self.q[i] = _given(drawn, mask)
        return kept[:1]


def _must_end(mask: Mask, ends: frozenset[int]) -> bool:
    n = sum(bool(mask[t]) for t in ends if t < mask.size)
    return 0 < n == np.count_nonzero(mask)


def _mass(q: Array, mask: Mask) -> float:
    return float(q[: mask.size][mask[: q.size]].sum() + q[mask.size :].sum())


def _given(q: Array, mask: Mask) -> Array:
    """The distribution, given that what is drawn is allowed."""
    left = np.zeros_like(q)
    n = min(q.size, mask.size)
    left[:n][mask[:n]] = q[:n][mask[:n]]
    return np.asarray(left / left.sum())
