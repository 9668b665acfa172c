"""Several drafters' trees made one: candidates in order of the probability that their whole path is accepted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from slipstream.core.types import EMPTY_DRAFT, Draft

Judge = Callable[[str, Hashable, float], float]  # origin, evidence, claim -> probability given the parent


def claimed(origin: str, evidence: Hashable, claim: float) -> float:
    """The judge who believes every claim."""
    return claim


def merge(offers: Sequence[Draft], judge: Judge = claimed) -> Draft:
    """One tree of all offers, likeliest path first; `prob` is the judge's. A node that several drafters propose has the
    best of their probabilities, and that drafter's name.

    Below a node from which one drafter has *drawn* children (they have a `q`), only those are taken, as drawn: a
    sampling verifier must not meet a selection that depends on what was drawn.
    """
    offers = sorted((o for o in offers if o.tokens), key=lambda o: all(q is None for q in o.q))
    if not offers:
        return EMPTY_DRAFT
    m = _Merged()
    for number, offer in enumerate(offers):
        m.add(number, offer, judge)
    return m.ordered()


class _Merged:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.prob: list[float] = []
        self.source: list[tuple[Draft, int]] = []
        self._place: dict[tuple[int, int], int] = {}
        self._drawn: dict[int, int] = {}  # parent -> the offer that drew its children

    def add(self, number: int, offer: Draft, judge: Judge) -> None:
        place = {-1: -1}
        for i, (token, parent) in enumerate(zip(offer.tokens, offer.parents, strict=True)):
            if parent not in place:
                continue
            above = place[parent]
            if offer.q[i] is not None:
                self._drawn.setdefault(above, number)
            if self._drawn.get(above, number) != number:
                continue
            p = judge(offer.origin[i], offer.evidence[i], offer.prob[i])
            node = self._place.get((above, token))
            if node is None:
                node = self._place[above, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(above)
                self.prob.append(p)
                self.source.append((offer, i))
            elif p > self.prob[node]:
                self.prob[node], self.source[node] = p, (offer, i)
            place[i] = node

    def ordered(self) -> Draft:
        self._share()
        n = len(self.tokens)
        path: list[float] = []
        for i in range(n):
            parent = self.parents[i]
            path.append(self.prob[i] * (path[parent] if parent >= 0 else 1.0))
        order = sorted(range(n), key=lambda i: (-path[i], i))  # a parent is never after its child
        place = {-1: -1} | {old: new for new, old in enumerate(order)}
        return Draft(
            tuple(self.tokens[i] for i in order),
            tuple(place[self.parents[i]] for i in order),
            tuple(self.prob[i] for i in order),
            tuple(self.source[i][0].origin[self.source[i][1]] for i in order),
            tuple(self.source[i][0].q[self.source[i][1]] for i in order),
            tuple(self.source[i][0].evidence[self.source[i][1]] for i in order),
        )

    def _share(self) -> None:
        """Siblings exclude one another: together they cannot be likelier than 1."""
        kids: dict[int, list[int]] = {}
        for i, parent in enumerate(self.parents):
            kids.setdefault(parent, []).append(i)
        for parent, siblings in kids.items():
            if len(siblings) < 2:
                continue
            if parent not in self._drawn:
                siblings.sort(key=lambda i: (-self.prob[i], i))
            left, last = 1.0, 1.0
            for i in siblings:  # drawn ones keep their order, so a later one must not look better
                self.prob[i] = last = min(self.prob[i], left, last)
                left -= self.prob[i]


def path_probabilities(draft: Draft) -> list[float]:
    """P(node accepted with its whole path), for each node."""
    path: list[float] = []
    for p, parent in zip(draft.prob, draft.parents, strict=True):
        path.append(p * (path[parent] if parent >= 0 else 1.0))
    return path


def depth_first(draft: Draft) -> Draft:
    """The same nodes, each followed by its likeliest child: the likeliest path lies in consecutive cache cells."""
    if draft.is_chain:
        return draft
    kids = draft.children()
    order: list[int] = []
    stack = kids[0][::-1]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += kids[node + 1][::-1]
    return draft.select(order)
