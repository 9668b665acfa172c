"""Token recycling: what is remembered of the target's rows, for which contexts, and for how long."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROMPT, outcome, toy_engine
from slipstream.core.ports import Want
from slipstream.core.types import EMPTY_DRAFT, Array, Draft, SamplingParams, Verdict
from slipstream.drafters.recycle import RecycleDrafter
from test_lossless import KS, STOPS, TABLES, N, params, plain

GREEDY = SamplingParams()


def row(*best: int, n: int = 20) -> Array:
    """Logits that fall by one from the first of these tokens to the last; all others are far below."""
    logits = np.full(n, -20.0, np.float32)
    logits[list(best)] = 5.0 - np.arange(len(best))
    return logits


def started(*prompt: int, keep: bool = False) -> RecycleDrafter:
    drafter = RecycleDrafter(keep)
    drafter.begin(0, prompt, GREEDY)
    return drafter


def proposed(drafter: RecycleDrafter, *tokens: int, want: Want | None = None) -> Draft:
    return drafter.propose(0, tokens, want or Want(4, 1, 4))


def test_the_target_s_likely_tokens_come_back_in_their_order() -> None:
    drafter = started(7)
    drafter.observe(0, EMPTY_DRAFT, Verdict((), 3), np.stack([row(3, 9, 1)]))
    draft = proposed(drafter, 7, 3, 7)
    assert draft.tokens == (3, 9, 1)
    assert list(draft.prob) == sorted(draft.prob, reverse=True)
    assert [e[:2] for e in draft.evidence] == [(1, 0), (1, 1), (1, 2)]  # type: ignore[index]


def test_two_tokens_of_context_come_before_one() -> None:
    drafter = started(1, 7)
    drafter.observe(0, EMPTY_DRAFT, Verdict((), 3), np.stack([row(3)]))
    drafter.propose(0, [1, 7, 3, 2, 7], Want(1, 1))
    drafter.observe(0, EMPTY_DRAFT, Verdict((), 4), np.stack([row(4)]))
    assert proposed(drafter, 1, 7).tokens == (3,)
    assert proposed(drafter, 2, 7).tokens == (4,)
    assert proposed(drafter, 5, 7).tokens == (4,), "the last that was seen after 7 alone"


def test_rows_of_accepted_and_of_rejected_nodes_are_read() -> None:
    drafter = started(1, 2)
    draft = Draft((3, 4, 5), (-1, 0, -1))
    rows = np.stack([row(3), row(6), row(10), row(11)])
    drafter.observe(0, draft, Verdict((0,), 6), rows)
    drafter.observe(0, EMPTY_DRAFT, Verdict((), 8), np.stack([row(8)]))  # the context is 3 6 now, though not told
    for context, expected in (((1, 2), 3), ((2, 3), 6), ((3, 4), 10), ((2, 5), 11), ((3, 6), 8)):
        assert proposed(drafter, *context).tokens == (expected,)


def test_few_rows_are_read_and_rows_that_are_not_there_are_not_missed() -> None:
    class Rows(np.ndarray):  # type: ignore[type-arg]
        seen = 0

        def __getitem__(self, i):  # type: ignore[no-untyped-def]
            Rows.seen += 1
            return np.asarray(super().__getitem__(i))

    drafter, draft = started(1, 2), Draft(tuple(range(3, 18)), (-1,) * 15)
    drafter.observe(0, draft, Verdict((), 9), np.stack([row(3)] * 16).view(Rows))
    assert 1 < Rows.seen <= 6
    drafter.observe(0, draft, Verdict((), 9), None)
    drafter.observe(0, draft, Verdict((), 9), np.empty((0, 20), np.float32))


def test_the_prompt_is_read_and_the_target_overrules_it() -> None:
    drafter = started(1, 2, 3, 1, 2)
    assert proposed(drafter, 1, 2, 3, 1, 2, want=Want(4, 4)).tokens == (3, 1, 2, 3)
    drafter.observe(0, EMPTY_DRAFT, Verdict((), 8), np.stack([row(8)]))
    assert proposed(drafter, 1, 2, want=Want(4, 4)).tokens[0] == 8


@pytest.mark.parametrize("ended", [True, False])
def test_begin_forgets_unless_asked_to_keep_and_slots_are_apart(ended: bool) -> None:
    for keep in (False, True):
        drafter = started(1, 2, keep=keep)
        drafter.begin(1, [9], GREEDY)
        drafter.observe(0, EMPTY_DRAFT, Verdict((), 3), np.stack([row(3)]))
        assert len(drafter.propose(1, [1, 2], Want(4, 4))) == 0
        if ended:
            drafter.end(0)
            drafter.end(0)
        drafter.begin(0, [5], GREEDY, cached=1)
        assert proposed(drafter, 1, 2).tokens == ((3,) if keep else ())


@given(st.lists(st.integers(-300, 300).map(lambda n: n / 10), min_size=2, max_size=40))
def test_what_is_remembered_is_the_top_of_a_full_sort(logits: list[float]) -> None:
    drafter = started(0)
    drafter.observe(0, EMPTY_DRAFT, Verdict((), 0), np.array([logits], np.float32))
    order = sorted(range(len(logits)), key=lambda i: -np.float32(logits[i]))
    top = [i for i in order if np.float32(logits[i]) > np.float32(max(logits)) - np.float32(5.0)][:6]
    draft = proposed(drafter, 0, want=Want(9, 1, 9))
    assert [np.float32(logits[i]) for i in draft.tokens] == [np.float32(logits[i]) for i in top]
    assert all(0 < p < 1 and math.isfinite(p) for p in draft.prob)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 9), st.integers(1, 5), st.integers(1, 3))
def test_proposals_keep_to_the_want(tokens: list[int], nodes: int, depth: int, width: int) -> None:
    drafter = started(*tokens)
    drafter.observe(0, EMPTY_DRAFT, Verdict((), 0), np.stack([row(0, 1, 2)]))
    draft = drafter.propose(0, [*tokens, 0], Want(nodes, depth, width))
    assert len(draft) <= nodes and max(draft.depths(), default=0) <= depth
    for kids in draft.children():
        assert len(kids) <= width and len({draft.tokens[i] for i in kids}) == len(kids)


def test_the_text_is_the_target_s_own() -> None:
    for table in TABLES:
        for temperature in (0.0, 0.8):
            for stop, (opened, asked) in STOPS.items():
                for k in KS[1:]:
                    for width in (1, 3):
                        engine = toy_engine(TABLES[table], N, RecycleDrafter(), k, width, **opened)
                        result = engine.generate(PROMPT, sampling=params(temperature), **asked)
                        assert outcome(result) == outcome(plain(table, stop, temperature))
                        assert result.stats.accepted > 0 or len(result.ids) < 9
