"""Drafts from the sequence itself: what followed the longest earlier match of its last tokens.

A suffix automaton (Blumer et al. 1985) over prompt and output is extended by one token at a time in amortised constant
work. Each state counts what followed it, for the few shortest and the few longest contexts of every position, so that
candidates have probabilities; those of shorter contexts get what the longer ones leave. Compare SAM decoding
(arXiv 2411.10666) and SuffixDecoding (arXiv 2411.04975).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from slipstream.core.ports import Want
from slipstream.core.types import EMPTY_DRAFT, Array, Draft, SamplingParams, Verdict
from slipstream.drafters.evidence import claims
from slipstream.drafters.growth import Option, grow

_SHORT = 12  # contexts up to this length are counted at every position
_LONG = 4  # and so many of the longest ones
_LEVELS = 3  # contexts looked at for one node
_ENOUGH = 0.15  # shorter contexts are not asked once so little is left for them


class Automaton:
    """Suffix automaton of a growing token sequence, with counts of what followed each context."""

    def __init__(self) -> None:
        self.next: list[dict[int, int]] = [{}]
        self.link: list[int] = [-1]
        self.length: list[int] = [0]
        self.follow: list[dict[int, int]] = [{}]  # token -> how often it followed; the latest is moved to the end
        self.last = 0
        self._short = 0  # the longest suffix that is not longer than _SHORT

    def extend(self, token: int) -> None:
        self._count(token)
        cur = self._add(self.length[self.last] + 1, {}, -1, {})
        p = self.last
        while p >= 0 and token not in self.next[p]:
            self.next[p][token] = cur
            p = self.link[p]
        if p < 0:
            self.link[cur] = 0
        else:
            q = self.next[p][token]
            self.link[cur] = q if self.length[q] == self.length[p] + 1 else self._split(p, token, q)
        self.last = cur
        self._short = self.next[self._short].get(token, 0)
        while self.length[self._short] > _SHORT and self.length[self.link[self._short]] > 0:
            self._short = self.link[self._short]

    def _add(self, length: int, following: dict[int, int], link: int, counts: dict[int, int]) -> int:
        self.next.append(following)
        self.link.append(link)
        self.length.append(length)
        self.follow.append(counts)
        return len(self.next) - 1

    def _split(self, p: int, token: int, q: int) -> int:
        clone = self._add(self.length[p] + 1, dict(self.next[q]), self.link[q], dict(self.follow[q]))
        while p >= 0 and self.next[p].get(token) == q:
            self.next[p][token] = clone
            p = self.link[p]
        self.link[q] = clone
        return clone

    def _count(self, token: int) -> None:
        state, steps = self.link[self.last], 0
        while state >= 0 and steps < _LONG and self.length[state] > _SHORT:
            self._bump(state, token)
            state, steps = self.link[state], steps + 1
        state = self._short
        while state > 0:
            if self.length[state] <= _SHORT:
                self._bump(state, token)
            state = self.link[state]

    def _bump(self, state: int, token: int) -> None:
        counts = self.follow[state]
        counts[token] = counts.pop(token, 0) + 1

    def behind(self, path: Sequence[int]) -> tuple[int, int]:
        """The longest context that had stood before, of the sequence with `path` behind it: its state and length."""
        state, match = self.last, self.length[self.last]
        for token in path:
            while token not in self.next[state] and state > 0:
                state = self.link[state]
                match = self.length[state]
            if token in self.next[state]:
                state, match = self.next[state][token], match + 1
        return state, match

    def options(self, state: int, match: int, min_match: int, width: int) -> list[Option[tuple[int, int]]]:
        """Up to `width` tokens that followed this context or shorter ones, likeliest first (the later seen of equals).

        `match` is how many tokens of the context are in use; each option leads to a state and its match.
        """
        following = self.next[state]
        while not following and state > 0:  # seen only at the very end: a shorter context has to do
            state = self.link[state]
            following, match = self.next[state], min(match, self.length[state])
        found: dict[int, Option[tuple[int, int]]] = {}
        left = 1.0
        for _ in range(_LEVELS):
            if state <= 0 or match < min_match:
                break
            following = self.next[state]
            counts = self.follow[state] or dict.fromkeys(following, 1)  # a long context is seldom counted
            kept = 0.0
            for token, prob, label in claims(counts, match, width):
                kept += prob
                if token not in found:
                    found[token] = (left * prob, token, label, (following[token], match + 1))
            left *= 1 - kept
            if left < _ENOUGH or (len(counts) > 1 and width == 1):
                break
            state = self.link[state]
            match = min(match, self.length[state])
        if len(found) < 2:
            return list(found.values())
        return sorted(found.values(), key=itemgetter(0), reverse=True)[:width]


class SuffixDrafter:
    """Needs no model. Proposes nothing when the last `min_match` tokens have not stood together before.

    Evidence is a label of `drafters.evidence`."""

    name = "suffix"
    costly = False

    def __init__(self, min_match: int = 2) -> None:
        self.min_match = min_match
        self._slots: dict[int, tuple[Automaton, int]] = {}

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams, cached: int = 0) -> None:
        self._slots[slot] = (Automaton(), 0)
        self._read(slot, tokens)

    def _read(self, slot: int, tokens: Sequence[int]) -> Automaton:
        automaton, n = self._slots[slot]
        for token in tokens[n:]:
            automaton.extend(token)
        self._slots[slot] = (automaton, len(tokens))
        return automaton

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        a = self._read(slot, tokens)
        state = max(a.link[a.last], 0)
        return self._grow(a, state, a.length[state], want)

    def peek(self, slot: int, tokens: Sequence[int], path: Sequence[int], want: Want) -> Draft:
        a = self._slots[slot][0]
        return self._grow(a, *a.behind(path), want)

    def _grow(self, a: Automaton, state: int, match: int, want: Want) -> Draft:
        least = self.min_match
        if state <= 0 or match < least:
            return EMPTY_DRAFT

        def options(at: tuple[int, int], width: int) -> list[Option[tuple[int, int]]]:
            return a.options(*at, least, width)

        return grow((state, match), options, want, self.name)

    def observe(self, slot: int, draft: Draft, verdict: Verdict, logits: Array | None) -> None:
        return None

    def end(self, slot: int) -> None:
        self._slots.pop(slot, None)
