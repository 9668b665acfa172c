"""Draft trees: shape, selection, limits, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.types import EMPTY_DRAFT, Draft
from slipstream.errors import UsageError


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    n = draw(st.integers(0, 14))
    parents = tuple(draw(st.integers(-1, i - 1)) for i in range(n))
    prob = tuple((i + 1) / 20 for i in range(n))
    q = tuple(np.full(3, i, np.float32) if i % 2 else None for i in range(n))
    return Draft(tuple(100 + i for i in range(n)), parents, prob, tuple(f"d{i}" for i in range(n)), q)


def chain_of(draft: Draft, node: int) -> list[int]:
    """Tokens from the root down to a node: what a node is, whatever its number."""
    out = []
    while node >= 0:
        out.append(draft.tokens[node])
        node = draft.parents[node]
    return out[::-1]


def paths(draft: Draft) -> set[tuple[int, ...]]:
    return {tuple(chain_of(draft, i)) for i in range(len(draft))}


def check_same_nodes(part: Draft, whole: Draft) -> None:
    """Every node has kept its path and all that belongs to it (token 100 + i was node i)."""
    assert paths(part) <= paths(whole)
    for i, token in enumerate(part.tokens):
        old = token - 100
        assert part.prob[i] == whole.prob[old] and part.origin[i] == whole.origin[old] and part.q[i] is whole.q[old]


@given(drafts())
def test_depths_and_children_agree_with_the_parents(d: Draft) -> None:
    assert d.depths() == [len(chain_of(d, i)) for i in range(len(d))]
    kids = d.children()
    assert len(kids) == len(d) + 1 and sorted(i for k in kids for i in k) == list(range(len(d)))
    assert all(d.parents[i] == node - 1 for node, k in enumerate(kids) for i in k)
    assert all(k == sorted(k) for k in kids)  # in the order in which they were drawn
    assert d.is_chain == (all(len(k) < 2 for k in kids) and d.parents == tuple(range(-1, len(d) - 1)))


@given(drafts(), st.data())
def test_select_keeps_paths_and_refuses_orphans(d: Draft, data: st.DataObject) -> None:
    nodes = sorted(data.draw(st.sets(st.integers(0, len(d) - 1)))) if len(d) else []
    if all(d.parents[i] in (-1, *nodes) for i in nodes):
        part = d.select(nodes)
        assert part.tokens == tuple(d.tokens[i] for i in nodes)
        check_same_nodes(part, d)
    else:
        with pytest.raises(UsageError, match="parent"):
            d.select(nodes)


@given(drafts(), st.integers(-1, 16), st.integers(0, 8))
def test_limit_is_the_first_nodes_that_are_not_too_deep(d: Draft, nodes: int, depth: int) -> None:
    part = d.limit(nodes, depth)
    fits = [i for i in range(len(d)) if len(chain_of(d, i)) <= depth]
    assert part.tokens == tuple(d.tokens[i] for i in fits[: max(nodes, 0)])
    check_same_nodes(part, d)
    if nodes >= len(d) and depth >= max(d.depths(), default=0):
        assert part is d


@given(drafts())
def test_the_spine_is_the_first_child_of_the_first_child(d: Draft) -> None:
    spine = d.spine()
    assert spine.is_chain
    check_same_nodes(spine, d)
    node, expected = -1, []
    while kids := [i for i, p in enumerate(d.parents) if p == node]:
        node = kids[0]
        expected.append(d.tokens[node])
    assert spine.tokens == tuple(expected)
    assert (len(d) == 0) == (len(spine) == 0)


def test_what_is_filled_in_and_what_is_refused() -> None:
    d = Draft.chain([5, 6], "suffix")
    assert (d.parents, d.prob, d.origin, d.q) == ((-1, 0), (1.0, 1.0), ("suffix", "suffix"), (None, None))
    assert len(EMPTY_DRAFT) == 0 and EMPTY_DRAFT.is_chain and EMPTY_DRAFT.limit(3, 3) is EMPTY_DRAFT
    for parents in ((0,), (1,), (-2,), (), (-1, 0)):
        with pytest.raises(UsageError, match="parents"):
            Draft((1,), parents)
    for extra in ({"prob": (1.0,)}, {"origin": ("a",)}, {"q": (None,)}):
        with pytest.raises(UsageError):
            Draft((1, 2), (-1, 0), **extra)  # type: ignore[arg-type]
