"""Several drafters' trees made one, against a slow and obvious way; and nothing may be selected by what was drawn."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.cost import Prices
from slipstream.core.merge import claimed, depth_first, merge, path_probabilities
from slipstream.core.ports import Room, Want
from slipstream.core.priced import Priced
from slipstream.core.types import EMPTY_DRAFT, PAD, Draft
from virtual import CURVES

N = 5
Path = tuple[int, ...]
probs = st.integers(0, 20).map(lambda i: i / 20)


def path_of(draft: Draft, node: int) -> Path:
    out: list[int] = []
    while node >= 0:
        out.insert(0, draft.tokens[node])
        node = draft.parents[node]
    return tuple(out)


def shape(draw: st.DrawFn, most: int = 8) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Tokens and parents of a tree whose siblings differ."""
    tokens: list[int] = []
    parents: list[int] = []
    for i in range(draw(st.integers(0, most))):
        parent = draw(st.integers(-1, i - 1))
        taken = {t for t, p in zip(tokens, parents, strict=True) if p == parent}
        left = [t for t in range(N) if t not in taken]
        if not left:
            break
        tokens.append(draw(st.sampled_from(left)))
        parents.append(parent)
    return tuple(tokens), tuple(parents)


@st.composite
def drafts(draw: st.DrawFn, origin: str = "a", drawn: bool = False) -> Draft:
    tokens, parents = shape(draw)
    n = len(tokens)
    prob = tuple(draw(probs) for _ in range(n))
    if drawn:  # nothing said of a drawn token depends on it; later siblings are never likelier
        prob = tuple(0.6 / 2 ** parents[:i].count(p) for i, p in enumerate(parents))
    q = tuple(np.full(N, 1 / N, np.float32) for _ in range(n)) if drawn else (None,) * n
    return Draft(tokens, parents, prob, (origin,) * n, q, tuple((origin, i) for i in range(n)))


many = st.tuples(drafts("a"), drafts("b"), drafts("c"))


def judge(origin: str, evidence: Hashable, claim: float) -> float:
    return {"a": 1.0, "b": 0.5, "c": 0.9}[origin] * claim


@pytest.mark.parametrize("how", [claimed, judge])
@given(offers=many)
def test_the_union_with_the_best_of_each_node(how: object, offers: tuple[Draft, ...]) -> None:
    tree = merge(offers, how)  # type: ignore[arg-type]
    best: dict[Path, tuple[float, set[str]]] = {}
    for offer in offers:
        for i in range(len(offer)):
            path, p = path_of(offer, i), how(offer.origin[i], offer.evidence[i], offer.prob[i])  # type: ignore[operator]
            before, names = best.get(path, (-1.0, set()))
            if p >= before:
                best[path] = p, {offer.origin[i]} | (names if p == before else set())
    paths = [path_of(tree, i) for i in range(len(tree))]
    assert len(set(paths)) == len(paths) and set(paths) == set(best)
    shared = expected_shares({path: p for path, (p, _) in best.items()})
    for i, path in enumerate(paths):
        assert tree.origin[i] in best[path][1]
        assert tree.prob[i] == pytest.approx(shared[path], abs=1e-12)


def expected_shares(best: dict[Path, float]) -> dict[Path, float]:
    """Siblings exclude one another: likeliest first, each gets what it claims or what is left."""
    out = {}
    for above in {path[:-1] for path in best}:
        left = 1.0
        for path in sorted((p for p in best if p[:-1] == above), key=lambda p: -best[p]):
            out[path] = min(best[path], left)
            left -= out[path]
    return out


@given(many)
def test_best_first_parents_first_and_siblings_within_1(offers: tuple[Draft, ...]) -> None:
    tree = merge(offers)
    path = path_probabilities(tree)
    slow = [float(np.prod([tree.prob[j] for j in line(tree, i)])) for i in range(len(tree))]
    assert path == pytest.approx(slow, abs=1e-12) and path == sorted(path, reverse=True)
    assert all(parent < i for i, parent in enumerate(tree.parents))
    for kids in tree.children():
        assert sum(tree.prob[i] for i in kids) <= 1 + 1e-9
    assert sum(path[i] for i, p in enumerate(tree.parents) if p < 0) <= 1 + 1e-9


def line(draft: Draft, node: int) -> list[int]:
    out = []
    while node >= 0:
        out.append(node)
        node = draft.parents[node]
    return out


@given(drafts("a"))
def test_one_draft_keeps_its_nodes(draft: Draft) -> None:
    tree = merge([EMPTY_DRAFT, draft])
    assert {path_of(tree, i) for i in range(len(tree))} == {path_of(draft, i) for i in range(len(draft))}
    again = merge([draft, draft])
    assert (again.tokens, again.parents, again.prob) == (tree.tokens, tree.parents, tree.prob)
    assert merge([]) is EMPTY_DRAFT and merge([EMPTY_DRAFT] * 2) is EMPTY_DRAFT


@given(many)
def test_depth_first_keeps_the_nodes_and_puts_the_likeliest_child_next(offers: tuple[Draft, ...]) -> None:
    tree = merge(offers)
    deep = depth_first(tree)

    def known(d: Draft) -> dict[Path, object]:
        return {path_of(d, i): (d.prob[i], d.origin[i], d.evidence[i]) for i in range(len(d))}

    assert known(deep) == known(tree)
    kids, path = deep.children(), path_probabilities(deep)
    for node in range(-1, len(deep)):
        if kids[node + 1]:
            first = kids[node + 1][0]
            assert first == node + 1
            assert path[first] == max(path[i] for i in kids[node + 1])
    assert path_of(deep, len(deep.spine()) - 1) == path_of(tree.spine(), len(tree.spine()) - 1)
    chain = tree.spine()
    assert depth_first(chain) is chain


# -- drawn nodes ------------------------------------------------------------------------------------------------------


@given(drafts("a"), drafts("drawn", drawn=True), drafts("b"))
def test_children_of_a_node_come_from_the_drafter_that_drew_them_in_drawn_order(a: Draft, d: Draft, b: Draft) -> None:
    tree = merge([a, d, b])
    for node, kids in enumerate(tree.children()):
        below = path_of(tree, node - 1)
        drawn = [d.evidence[i] for i in range(len(d)) if path_of(d, i)[:-1] == below]
        if drawn:
            assert [tree.evidence[i] for i in kids] == drawn
            assert all(tree.q[i] is not None for i in kids)
        else:
            assert all(tree.q[i] is None for i in kids)
    assert {path_of(d, i) for i in range(len(d))} <= {path_of(tree, i) for i in range(len(tree))}


def test_of_two_that_draw_the_first_counts() -> None:
    q = [np.full(N, 0.2, np.float32)]
    one, two = Draft.chain([1], "one", q, [0.2]), Draft.chain([2], "two", q, [0.9])
    assert merge([one, two]).origin == ("one",) and merge([two, one]).origin == ("two",)
    chosen = Draft.chain([3, 4], "sure", prob=[1.0, 1.0])
    assert merge([chosen, one]).origin == ("one",)


def test_a_later_drawn_sibling_never_looks_better_than_an_earlier_one() -> None:
    q = tuple(np.full(N, 0.2, np.float32) for _ in range(3))
    tree = merge([Draft((4, 0, 2), (-1, -1, -1), (0.2, 0.9, 0.5), ("m",) * 3, q)])
    assert tree.tokens == (4, 0, 2) and tree.prob == (0.2, 0.2, 0.2)


def redrawn(draft: Draft, seed: int) -> Draft:
    """Other tokens for the drawn nodes, siblings still different; all else the same."""
    rng = np.random.default_rng(seed)
    tokens = list(draft.tokens)
    for kids in draft.children():
        for i, token in zip(kids, rng.permutation(N), strict=False):
            tokens[i] = int(token)
    return Draft(tuple(tokens), draft.parents, draft.prob, draft.origin, draft.q, draft.evidence)


@given(
    drafts("drawn", drawn=True),
    st.tuples(drafts("a"), drafts("b")),
    st.tuples(drafts("a"), drafts("drawn", drawn=True)),
    st.integers(0, 999),
    st.sampled_from(sorted(CURVES)),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.sampled_from([1, 2])),
)
def test_what_is_verified_does_not_depend_on_what_was_drawn(
    drawn: Draft, sure: tuple[Draft, ...], other: tuple[Draft, ...], seed: int, curve: str, limits: tuple[int, ...]
) -> None:
    """The same bets on other draws: the same drawn nodes in the same order, in this slot and in the next, and as many
    others. A sampling verifier would be biased by anything else."""
    left, most, leaves, width = limits
    rooms = [Room(0, 20, left, most, leaves, N, 2), Room(1, 30, left, most, leaves, N, 2)]
    seen = []
    for tree in (drawn, redrawn(drawn, seed), redrawn(drawn, seed + 1)):
        policy = Priced(Prices(CURVES[curve]), most=Want(63, 63, width))
        choices = policy.choose(rooms, [[*sure, tree], other])
        seen.append([[labels(c.draft), c.expected, c.price_s] for c in choices])
    assert same(seen[0], seen[1]) and same(seen[0], seen[2])


def labels(draft: Draft) -> list[object]:
    return [PAD if o == PAD else e for e, o in zip(draft.evidence, draft.origin, strict=True)]


def same(a: Sequence[Sequence[object]], b: Sequence[Sequence[object]]) -> bool:
    return all(x[0] == y[0] and x[1:] == pytest.approx(y[1:]) for x, y in zip(a, b, strict=True))
