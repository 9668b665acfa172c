"""Learnt probabilities: they reach the truth from a wrong claim, follow it when it moves, and keep slots apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.calibration import Calibration


def learn(c: Calibration, rate: float, n: int, slot: int = 0, evidence: object = 3, claim: float = 0.9) -> list[float]:
    """Guesses that are right at this rate; what was believed before each."""
    rng, believed = np.random.default_rng(int(1000 * rate) + n), []
    for _ in range(n):
        believed.append(c.probability(slot, "d", evidence, claim))
        c.learn(slot, "d", evidence, claim, bool(rng.random() < rate))
    return believed


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("claim", [0.02, 0.5, 0.99])
def test_the_true_rate_is_found_from_any_claim(claim: float, rate: float) -> None:
    c = Calibration()
    assert c.probability(0, "d", 3, claim) == claim  # until something is known
    late = learn(c, rate, 400, claim=claim)[200:]
    assert np.mean(late) == pytest.approx(rate, abs=0.06)


def test_a_dozen_guesses_are_enough_to_distrust_a_liar() -> None:
    assert learn(Calibration(), 0.0, 13, claim=0.95)[-1] < 0.15
    assert learn(Calibration(), 1.0, 13, claim=0.05)[-1] > 0.8


def test_what_was_learnt_fades_when_the_rate_changes() -> None:
    c = Calibration()
    learn(c, 0.9, 1000)
    soon = learn(c, 0.1, 40)
    assert np.mean(soon[25:]) < 0.5  # the mood is first
    c.begin(0)
    assert c.probability(0, "d", 3, 0.9) > 0.5  # the table still remembers
    learn(c, 0.1, 800)
    c.begin(0)
    assert c.probability(0, "d", 3, 0.9) < 0.2  # and has forgotten


def test_moods_are_one_slot_s_own_and_end_with_its_text() -> None:
    c = Calibration()
    learn(c, 0.5, 300)
    c.begin(0)
    base = c.probability(0, "d", 3, 0.9)
    assert base == c.probability(1, "d", 3, 0.9) == pytest.approx(0.5, abs=0.1)
    learn(c, 1.0, 6)
    assert c.probability(0, "d", 3, 0.9) - base > 0.1  # of the drafter in this text
    assert c.probability(0, "d", "new", 0.5) > 0.55  # whatever the evidence
    assert abs(c.probability(1, "d", 3, 0.9) - base) < 0.05  # elsewhere only the table has moved
    assert c.probability(0, "other", 3, 0.5) == 0.5
    c.begin(1)
    assert c.probability(0, "d", 3, 0.9) - base > 0.1  # another slot's beginning is not this one's
    c.begin(0)
    assert c.probability(0, "d", 3, 0.9) == c.probability(1, "d", 3, 0.9)


def test_evidence_and_drafters_are_judged_apart() -> None:
    c = Calibration()
    for _ in range(100):
        c.learn(0, "d", "sure", 0.5, True)
        c.learn(0, "d", "unsure", 0.5, False)
    c.begin(0)
    assert c.probability(0, "d", "sure", 0.5) > 0.9 and c.probability(0, "d", "unsure", 0.5) < 0.1
    assert c.probability(0, "e", "sure", 0.5) == 0.5


guesses = st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.integers(0, 2), st.floats(0, 1), st.booleans())


@given(st.lists(guesses, max_size=80), st.floats(0, 1))
def test_a_probability_stays_between_0_and_1(history: list[tuple[int, str, int, float, bool]], claim: float) -> None:
    c = Calibration()
    for slot, origin, evidence, said, right in history:
        c.learn(slot, origin, evidence, said, right)
        p = c.probability(slot, origin, evidence, said)
        assert 0 <= p <= 1
    assert all(0 <= c.probability(s, o, e, claim) <= 1 for s in range(3) for o in "abc" for e in range(4))


@given(st.floats(0, 1), st.floats(0, 1), st.lists(st.booleans(), max_size=30))
def test_of_two_claims_with_one_history_the_higher_is_believed_more(a: float, b: float, history: list[bool]) -> None:
    c = Calibration()
    for right in history:
        c.learn(0, "d", 1, 0.5, right)
    low, high = (c.probability(0, "d", 1, x) for x in sorted((a, b)))
    assert low <= high
