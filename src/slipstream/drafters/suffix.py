"""Drafts from the sequence itself: what followed the longest earlier match of its last tokens.

A suffix automaton (Blumer et al. 1985) over prompt and output is extended by one token at a time in amortised constant
work. Each state counts what followed it, for the few shortest and the few longest contexts of every position, so that
candidates have probabilities. Compare SAM decoding (arXiv 2411.10666) and SuffixDecoding (arXiv 2411.04975).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from slipstream.core.ports import Want
from slipstream.core.types import EMPTY_DRAFT, Array, Draft, SamplingParams, Verdict

_SHORT = 12  # contexts up to this length are counted at every position
_LONG = 4  # and so many of the longest ones


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

    def candidates(self, state: int, width: int) -> list[tuple[int, float]]:
        """Up to `width` tokens that followed this context, likeliest first (the later seen of equals), with estimated
        probabilities: a token's share of the counts, with one more count for something new."""
        counts = self.follow[state]
        if not counts:  # a long context that is seldom counted: its transitions say what followed
            counts = dict.fromkeys(self.next[state], 1)
        total = sum(counts.values()) + 1
        order = sorted(enumerate(counts.items()), key=lambda e: (-e[1][1], -e[0]))
        return [(token, n / total) for _, (token, n) in order[:width]]


class SuffixDrafter:
    """Needs no model. Proposes nothing when the last `min_match` tokens have not stood together before."""

    name = "suffix"

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
        state = a.link[a.last]
        if state <= 0 or a.length[state] < self.min_match:
            return EMPTY_DRAFT
        nodes = _grow(a, state, a.length[state], self.min_match, want)
        return _in_order(nodes, self.name)

    def observe(self, slot: int, draft: Draft, verdict: Verdict, logits: Array | None) -> None:
        return None

    def end(self, slot: int) -> None:
        self._slots.pop(slot, None)


_Node = tuple[int, int, float]  # token, parent, probability given the parent


def _grow(a: Automaton, state: int, match: int, min_match: int, want: Want) -> list[_Node]:
    """Best-first over path probability: the `want.nodes` likeliest nodes, each with its parent."""
    nodes: list[_Node] = []
    heap: list[tuple[float, int, int, int, float, int, int, int]] = []
    serial = 0

    def offer(state: int, match: int, parent: int, depth: int, path: float) -> None:
        nonlocal serial
        while state > 0 and not a.next[state]:  # seen only at the very end: a shorter context has to do
            state = a.link[state]
            match = min(match, a.length[state])
        if state <= 0 or match < min_match:
            return
        trust = match / (match + 0.5)  # a longer match is more to be believed
        for token, p in a.candidates(state, want.width):
            serial += 1
            heapq.heappush(
                heap, (-path * p * trust, serial, token, parent, p * trust, a.next[state][token], match + 1, depth)
            )

    offer(state, match, -1, 1, 1.0)
    while heap and len(nodes) < want.nodes:
        neg, _, token, parent, p, state, match, depth = heapq.heappop(heap)
        nodes.append((token, parent, p))
        if depth < want.depth:
            offer(state, match, len(nodes) - 1, depth + 1, -neg)
    return nodes


def _in_order(nodes: Sequence[_Node], origin: str) -> Draft:
    """Depth first, likelier child first: the likeliest path lies in consecutive cells."""
    kids: list[list[int]] = [[] for _ in range(len(nodes) + 1)]
    for i, (_, parent, _) in enumerate(nodes):
        kids[parent + 1].append(i)
    order: list[int] = []
    stack = sorted(kids[0], key=lambda i: (nodes[i][2], -i))
    while stack:
        i = stack.pop()
        order.append(i)
        stack += sorted(kids[i + 1], key=lambda j: (nodes[j][2], -j))
    place = {-1: -1} | {old: new for new, old in enumerate(order)}
    return Draft(
        tuple(nodes[i][0] for i in order),
        tuple(place[nodes[i][1]] for i in order),
        tuple(nodes[i][2] for i in order),
        (origin,) * len(order),
    )
