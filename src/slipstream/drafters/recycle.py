"""Drafts from the target's own logits: after a token may come what the target found likely after it the last time.

Token recycling (arXiv 2408.08696), with pairs of tokens as contexts before single ones. Rows that a forward gave anyway
are read, those of rejected nodes too; no model, no training.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from slipstream.core.ports import Want
from slipstream.core.types import Array, Draft, SamplingParams, Verdict
from slipstream.drafters.growth import Option, grow

_TOP = 6  # next tokens kept for a context
_BELOW = 5.0  # and only those whose logit lies at most so far below the largest
_REJECTED = 4  # rows of rejected nodes that one step reads
_EDGES = (0.1, 0.3, 0.6, 0.9)  # bins of the recorded probability
# Chance that the token comes again, by bin (measured): after the same two tokens, after the same one.
_PAIR = (0.07, 0.09, 0.30, 0.38, 0.62)
_ONE = (0.04, 0.07, 0.11, 0.15, 0.30)
_PROMPT = (0.70, 0.18)  # and of one that followed them in the prompt
_ANY = -1

_Context = tuple[int, int]  # the last two tokens; the first may be _ANY
_Next = list[Option[_Context]]


class RecycleDrafter:
    """`keep`: what a slot has learned outlives its sequence. Else every sequence starts with nothing but its prompt.

    Evidence is (tokens of context, rank, bin of the probability when recorded, -1: seen in the prompt)."""

    name = "recycle"
    costly = False

    def __init__(self, keep: bool = False) -> None:
        self.keep = keep
        self._after: dict[int, dict[_Context, _Next]] = {}
        self._last: dict[int, _Context] = {}

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams, cached: int = 0) -> None:
        after = self._after.get(slot) if self.keep else None
        self._after[slot] = after = {} if after is None else after
        self._last[slot] = _tail(tokens)
        a = _ANY
        for b, c in pairwise(tokens):
            after[a, b] = [(_PROMPT[0], c, (2, 0, -1), (b, c))]
            after[_ANY, b] = [(_PROMPT[1], c, (1, 0, -1), (b, c))]
            a = b

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        after = self._after[slot]
        self._last[slot] = last = _tail(tokens)

        def options(context: _Context, width: int) -> _Next:
            return (after.get(context) or after.get((_ANY, context[1]), []))[:width]

        return grow(last, options, want, self.name)

    def observe(self, slot: int, draft: Draft, verdict: Verdict, logits: Array | None) -> None:
        after, (before, last) = self._after[slot], self._last[slot]
        if logits is not None and len(logits):
            accepted = set(verdict.path)
            rejected = [i for i in range(len(draft)) if i not in accepted]
            for i in (*rejected[:_REJECTED], -1, *verdict.path):  # what was accepted has the last word
                if i >= len(logits) - 1:
                    continue
                token = draft.tokens[i] if i >= 0 else last
                parent = draft.parents[i] if i >= 0 else -1
                a = before if i < 0 else last if parent < 0 else draft.tokens[parent]
                _read(after, a, token, logits[i + 1])
        self._last[slot] = _tail((before, last, *(draft.tokens[i] for i in verdict.path), verdict.token))

    def end(self, slot: int) -> None:
        self._last.pop(slot, None)
        if not self.keep:
            self._after.pop(slot, None)


def _tail(tokens: Sequence[int]) -> _Context:
    return tokens[-2] if len(tokens) > 1 else _ANY, tokens[-1] if tokens else _ANY


def _read(after: dict[_Context, _Next], a: int, b: int, row: Array) -> None:
    """Remember what the target finds likely after `a`, `b`. Nothing as long as the row is sorted or copied."""
    top = row.max()
    ids = np.flatnonzero(row > top - _BELOW)
    weights = np.exp(row[ids] - top)
    order = np.argsort(-weights, kind="stable")[:_TOP]
    total = float(weights.sum())
    likely = [(int(ids[i]), bisect_right(_EDGES, float(weights[i]) / total)) for i in order]
    after[a, b] = [(_PAIR[p], t, (2, min(i, 2), p), (b, t)) for i, (t, p) in enumerate(likely)]
    after[_ANY, b] = [(_ONE[p], t, (1, min(i, 2), p), (b, t)) for i, (t, p) in enumerate(likely)]
