"""Drafts from texts that the user names: what followed the sequence's last tokens there.

Positions of the corpus are sorted by the tokens before them, read backwards, up to 16 (a suffix array by prefix
doubling, Manber and Myers 1993). What ends with the same tokens lies together; bisection finds the longest match.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slipstream.core.ports import Want
from slipstream.core.types import EMPTY_DRAFT, Array, Draft, SamplingParams, Verdict
from slipstream.drafters.corpus_files import Corpus
from slipstream.drafters.evidence import claims, length_bin
from slipstream.drafters.growth import Option, grow

_REACH = 16  # longest match that is looked for
_SIGHTINGS = 24  # places whose continuations are compared
_FEW = 256  # places that are compared at once instead of by bisection
_ONCE = (0.15, 0.22, 0.34, 0.55, 0.66, 0.75, 0.85)  # a single sighting is worth less elsewhere than in the same text
_LEARNED = 1 << 16  # tokens of finished sequences that are remembered
_Tokens = npt.NDArray[np.int32]


class Index:
    """Finds the places of a corpus (documents end with -1) that the last tokens of a sequence lead to."""

    def __init__(self, tokens: _Tokens) -> None:
        self.text: _Tokens = np.concatenate([np.full(_REACH, -1, np.int32), tokens, np.full(1, -1, np.int32)])
        self.order = _sorted_backwards(tokens) + np.int32(_REACH)
        self._first = self.text[self.order]

    def places(self, recent: Sequence[int], least: int) -> tuple[list[int], int]:
        """Some positions that follow the longest match of at least `least` of the `recent` tokens; its length."""
        if not len(recent) or recent[-1] < 0:
            return [], 0
        token = np.int32(recent[-1])  # of another type, numpy would convert the whole array first
        low, high = (int(self._first.searchsorted(token, side)) for side in ("left", "right"))
        match, most = 1, min(len(recent), _REACH)
        while high - low > _FEW and match < most:
            before = _Before(self, match)
            a = bisect_left(before, recent[-match - 1], low, high)
            b = bisect_right(before, recent[-match - 1], a, high)
            if a == b:
                break
            low, high, match = a, b, match + 1
        if low == high:
            return [], 0
        ends = self.order[low:high]
        if high - low <= _FEW and match < most:
            ends, match = self._longest(ends, recent, match, most)
        if match < least:
            return [], 0
        return (ends[:: -(-len(ends) // _SIGHTINGS)] + 1).tolist(), match

    def _longest(self, ends: _Tokens, recent: Sequence[int], match: int, most: int) -> tuple[_Tokens, int]:
        """Those of the positions where the match goes back furthest, and how far."""
        back = np.arange(match, most, dtype=np.int32)
        same = self.text[ends[:, None] - back] == np.array(recent[-match - 1 : -most - 1 : -1], np.int32)
        lengths = np.logical_and.accumulate(same, axis=1).sum(axis=1)
        further = int(lengths.max())
        return ends[lengths == further], match + further


class _Before(Sequence[int]):
    """The token `back` places before each sorted position, for bisection."""

    def __init__(self, index: Index, back: int) -> None:
        self.order, self.text, self.back = index.order.data, index.text.data, back

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        return self.text[self.order[i] - self.back]


def _sorted_backwards(tokens: _Tokens) -> npt.NDArray[np.int32]:
    """Positions of `tokens`, sorted by the token there, then the one before it and so on, `_REACH` in all."""
    n = len(tokens)
    rank = tokens.astype(np.int64) + 1
    reach = 1
    while reach < _REACH:
        before = np.zeros(n, np.int64)
        before[reach:] = rank[:-reach] if reach < n else rank[:0]
        _, rank = np.unique(rank * (int(rank.max(initial=0)) + 1) + before, return_inverse=True)
        rank, reach = rank.astype(np.int64) + 1, reach * 2
    return np.argsort(rank, kind="stable").astype(np.int32)


class CorpusDrafter:
    """The longest match in the corpus wins; no match of `min_match` tokens, no draft.

    `learn`: finished sequences are remembered in memory too (the latest 65,536 tokens; see `learned`).
    Evidence is a label of `drafters.evidence`."""

    name = "corpus"
    costly = False

    def __init__(self, corpus: Corpus, min_match: int = 2, learn: bool = False) -> None:
        self.min_match, self.learn = min_match, learn
        self.learned: deque[list[int]] = deque()
        self._given = Index(corpus.tokens)
        self._own = Index(np.empty(0, np.int32))
        self._slots: dict[int, list[int]] = {}

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams, cached: int = 0) -> None:
        self._slots[slot] = list(tokens) if self.learn else []

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        if self.learn:
            known = self._slots[slot]
            known += tokens[len(known) :]
        return self._grow(tokens[-_REACH:], want)

    def peek(self, slot: int, tokens: Sequence[int], path: Sequence[int], want: Want) -> Draft:
        return self._grow([*tokens[-_REACH:], *path][-_REACH:], want)

    def _grow(self, recent: Sequence[int], want: Want) -> Draft:
        options = [(*index.places(recent, self.min_match), index.text) for index in (self._own, self._given)]
        places, match, text = max(options, key=lambda o: o[1])
        if not places:
            return EMPTY_DRAFT

        def follow(at: tuple[list[int], int], width: int) -> list[Option[tuple[list[int], int]]]:
            return _options(text, *at, width)

        return grow((places, match), follow, want, self.name)

    def observe(self, slot: int, draft: Draft, verdict: Verdict, logits: Array | None) -> None:
        if self.learn:
            self._slots[slot] += [*(draft.tokens[i] for i in verdict.path), verdict.token]

    def end(self, slot: int) -> None:
        said = self._slots.pop(slot, [])
        if not self.learn or not said:
            return
        self.learned.append(said[-_LEARNED:])
        while sum(map(len, self.learned)) > _LEARNED:
            self.learned.popleft()
        self._own = Index(np.array([t for text in self.learned for t in (*text, -1)], np.int32))


def _options(text: _Tokens, places: list[int], match: int, width: int) -> list[Option[tuple[list[int], int]]]:
    """What stands at these places, by how many of them say so."""
    if len(places) == 1:
        token = int(text[places[0]])
        b = length_bin(match)
        return [(_ONCE[b], token, (b, "once"), ([places[0] + 1], match + 1))] if token >= 0 else []
    following: dict[int, list[int]] = {}
    for place in places:
        token = int(text[place])
        if token >= 0:
            following.setdefault(token, []).append(place + 1)
    if not following:
        return []
    counts = {token: len(after) for token, after in following.items()}
    return [(p, t, label, (following[t], match + 1)) for t, p, label in claims(counts, match, width)]
