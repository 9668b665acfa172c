"""Growing a draft best-first, whatever the drafter looks its continuations up in."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from slipstream.core.merge import depth_first
from slipstream.core.ports import Want
from slipstream.core.types import EMPTY_DRAFT, Draft

State = TypeVar("State")
Option = tuple[float, int, Hashable, State]  # probability given the parent, token, evidence, where it leads
Options = Callable[[State, int], Sequence[Option[State]]]  # at most so many of them, likeliest first
_Node = tuple[int, int, float, Hashable]  # token, parent, probability, evidence


def grow(state: State, options: Options[State], want: Want, origin: str) -> Draft:
    """The likeliest nodes by path probability, the likeliest path first; siblings are different tokens."""
    if want.nodes <= 0 or want.depth <= 0:
        return EMPTY_DRAFT
    if want.width == 1:
        return _chain(state, options, min(want.nodes, want.depth), origin)
    return depth_first(_draft(_best_first(state, options, want), origin))


def _chain(state: State, options: Options[State], length: int, origin: str) -> Draft:
    tokens: list[int] = []
    probs: list[float] = []
    labels: list[Hashable] = []
    while len(tokens) < length:
        found = options(state, 1)
        if not found:
            break
        prob, token, evidence, state = found[0]
        tokens.append(token)
        probs.append(prob)
        labels.append(evidence)
    return Draft.chain(tokens, origin, (), probs, labels) if tokens else EMPTY_DRAFT


def _best_first(state: State, options: Options[State], want: Want) -> list[_Node]:
    """Nodes in the order of their path probability."""
    nodes: list[_Node] = []
    heap: list[tuple[float, int, int, int, Option[State]]] = []  # -path probability, serial, parent, depth, option
    serial, parent, depth, path = 0, -1, 1, 1.0
    while True:
        found = options(state, want.width) if depth <= want.depth else ()
        if len(found) == 1 and (not heap or path * found[0][0] >= -heap[0][0]):  # nothing to compare: no heap
            option, path = found[0], path * found[0][0]
        else:
            for option in found:
                serial += 1
                heapq.heappush(heap, (-path * option[0], serial, parent, depth, option))
            if not heap:
                break
            negative, _, parent, depth, option = heapq.heappop(heap)
            path = -negative
        prob, token, evidence, state = option
        nodes.append((token, parent, prob, evidence))
        if len(nodes) == want.nodes:
            break
        parent, depth = len(nodes) - 1, depth + 1
    return nodes


def _draft(nodes: Sequence[_Node], origin: str) -> Draft:
    if not nodes:
        return EMPTY_DRAFT
    tokens, parents, probs, labels = zip(*nodes, strict=True)
    return Draft(tokens, parents, probs, (origin,) * len(tokens), (), labels)
