"""Drafting from an expected text: following it, finding it again after an edit, and forgetting it."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from helpers import PROMPT, outcome, toy_engine
from slipstream.core.ports import Want
from slipstream.core.types import SamplingParams
from slipstream.drafters.predicted import PredictedDrafter
from test_lossless import KS, STOPS, TABLES, N, params, plain

GREEDY = SamplingParams()
TEXT = list(range(100, 160))


def after(output: Sequence[int], expected: Sequence[int] = TEXT, want: Want | None = None) -> tuple[int, ...]:
    """What is proposed once the output is this."""
    drafter, tokens = PredictedDrafter(), list(PROMPT)
    drafter.expect(0, expected)
    drafter.begin(0, tokens, GREEDY)
    for token in output:
        drafter.propose(0, tokens, Want(4, 4))
        tokens.append(token)
    return drafter.propose(0, tokens, want or Want(4, 4)).tokens


def test_it_says_the_expected_text_from_its_first_token_to_its_last() -> None:
    assert after([]) == tuple(TEXT[:4])
    for n in range(len(TEXT)):
        assert after(TEXT[:n], want=Want(8, 8)) == tuple(TEXT[n : n + 8])
    assert after(TEXT) == () and after([*TEXT, 1, 2]) == ()


def test_a_peek_looks_ahead_and_leaves_no_trace() -> None:
    drafter, tokens = PredictedDrafter(), [*PROMPT, *TEXT[:5]]
    silent = PredictedDrafter()
    silent.begin(0, PROMPT, GREEDY)
    assert not silent.peek(0, PROMPT, [1], Want(4, 4)).tokens
    drafter.expect(0, TEXT)
    drafter.begin(0, PROMPT, GREEDY)
    before = drafter.propose(0, tokens, Want(4, 4))
    assert drafter.peek(0, tokens, TEXT[5:8], Want(4, 4)).tokens == tuple(TEXT[8:12])
    assert drafter.peek(0, tokens, [7, 7, *TEXT[20:24]], Want(4, 4)).tokens == tuple(TEXT[24:28])
    assert drafter.propose(0, tokens, Want(4, 4)) == before


def test_it_recovers_after_a_deletion_an_insertion_and_a_replacement() -> None:
    start = TEXT[:10]
    assert after([*start, *TEXT[20:22]]) == tuple(TEXT[22:26])  # ten tokens left out
    assert after([*start, 1, 2, 3, *TEXT[10:12]]) == tuple(TEXT[12:16])  # three put in
    assert after([*start, 1]) == tuple(TEXT[11:15])  # one changed: at once
    assert after([*start, 1, 2, 3, *TEXT[13:15]]) == tuple(TEXT[15:19])  # three changed
    assert after([1, 2, *TEXT[:2]]) == tuple(TEXT[2:6])  # something before the text


def test_of_equal_matches_the_one_not_far_ahead_is_followed() -> None:
    text = [*TEXT[:10], 7, 8, 50, *TEXT[10:20], 7, 8, 51, *TEXT[20:30], 7, 8, 52]
    assert after([*TEXT[:10], 7, 8, 50, *TEXT[10:15], 1, 2, 7, 8], text)[0] == 51
    assert after([*TEXT[18:20], 7, 8], text)[0] == 51  # the longer match


@given(st.lists(st.integers(0, 5), max_size=30), st.lists(st.integers(0, 5), max_size=30), st.integers(1, 3))
def test_proposals_stand_in_the_expected_text(expected: list[int], output: list[int], width: int) -> None:
    drafter, tokens = PredictedDrafter(), [9]
    drafter.expect(0, expected)
    drafter.begin(0, tokens, GREEDY)
    for token in [*output, 0]:
        draft = drafter.propose(0, tokens, Want(6, 4, width))
        assert len(draft) <= 6 and max(draft.depths(), default=0) <= 4
        for kids in draft.children():
            assert len(kids) <= width and len({draft.tokens[i] for i in kids}) == len(kids)
        for i, parent in enumerate(draft.parents):
            pair = [*([draft.tokens[parent]] if parent >= 0 else []), draft.tokens[i]]
            assert any(expected[j : j + len(pair)] == pair for j in range(len(expected)))
        assert all(0 < p < 1 for p in draft.prob) and None not in draft.evidence
        tokens.append(token)


@given(st.lists(st.integers(0, 50), min_size=12, max_size=60), st.data())
def test_two_tokens_after_any_single_edit_it_is_back_on_a_text_without_repeats(
    text: list[int], data: st.DataObject
) -> None:
    text = list(dict.fromkeys(text))
    if len(text) < 8:
        return
    at = data.draw(st.integers(3, len(text) - 4))
    kind = data.draw(st.sampled_from(["insert", "delete", "replace"]))
    cut = at if kind == "insert" else at + 1
    output = [*text[:at], *([] if kind == "delete" else [99]), *text[cut : cut + 2]]
    rest = tuple(text[cut + 2 : cut + 6])
    assert after(output, text) == rest


def test_an_expectation_holds_for_one_sequence_in_one_slot() -> None:
    drafter = PredictedDrafter()
    drafter.expect(0, TEXT)
    drafter.begin(0, [1], GREEDY)
    drafter.begin(1, [1], GREEDY)
    assert len(drafter.propose(0, [1], Want(4, 4))) == 4 and len(drafter.propose(1, [1], Want(4, 4))) == 0
    drafter.end(0)
    drafter.begin(0, [1], GREEDY)
    assert len(drafter.propose(0, [1], Want(4, 4))) == 0
    drafter.end(0)
    drafter.end(0)


class Expecting(PredictedDrafter):
    """Expects what plain decoding says, with some of it changed."""

    def __init__(self, text: Sequence[int]) -> None:
        super().__init__()
        self.text = [*text[:9], 3, *text[9:20], *text[24:]]

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams, cached: int = 0) -> None:
        self.expect(slot, self.text)
        super().begin(slot, tokens, params, cached)


def test_the_text_is_the_target_s_own() -> None:
    for table in TABLES:
        for temperature in (0.0, 0.8):
            for stop, (opened, asked) in STOPS.items():
                right = plain(table, stop, temperature)
                for k in KS[1:]:
                    for width in (1, 3):
                        engine = toy_engine(TABLES[table], N, Expecting(right.ids), k, width, **opened)
                        result = engine.generate(PROMPT, sampling=params(temperature), **asked)
                        assert outcome(result) == outcome(right)
                        assert result.stats.accepted > 0 or len(right.ids) < 9
