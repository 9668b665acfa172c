"""The verdict claims no more than its interval allows, and takes no draft model where it gains nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.advise.advice import Speed
from slipstream.advise.candidates import Candidate
from slipstream.advise.interval import Ratio
from slipstream.advise.verdict import HOPE, SAME, WORTH, Judged, best, choose, decide, verdict

GB = 10**9
SPEEDS = st.floats(0.3, 4)


def judged(draft: str, speedup: float, interval: tuple[float, float] | None, model: bool = False) -> Judged:
    way = Candidate(draft, (), draft if model else None)
    return Judged(way, GB if model else 0, Speed(speedup=speedup, interval=interval))


@pytest.mark.parametrize(
    ("speedup", "interval", "decision"),
    [
        (1.6, (1.3, 1.9), "on"),
        (1.6, (0.9, 2.2), "too few prompts"),
        (1.03, (1.01, 1.05), "not worth it"),
        (0.8, (0.7, 0.9), "off"),
        (0.97, (0.9, 1.04), "not worth it"),
        (1.6, None, "too few prompts"),
    ],
)
def test_decisions(speedup: float, interval: tuple[float, float] | None, decision: str) -> None:
    assert decide(Ratio(speedup, interval)) == decision


@given(SPEEDS, st.tuples(SPEEDS, SPEEDS).map(sorted))
def test_nothing_is_claimed_against_the_interval(speedup: float, ends: list[float]) -> None:
    said = decide(Ratio(speedup, (ends[0], ends[1])))
    if said == "on":
        assert ends[0] > 1 and speedup >= WORTH
    if said == "off":
        assert ends[1] < 1
    if said == "not worth it":
        assert ends[1] < HOPE


def test_as_good_as_the_best_and_cheaper_is_better() -> None:
    model, suffix, slow = judged("m", 1.50, None, True), judged("suffix", 1.48, None), judged("recycle", 1.2, None)
    assert best([model, suffix, slow]) is suffix
    assert best([model, suffix, slow], preferred="m") is model
    assert best([model, slow]) is model
    assert best([judged("m", 1.6, None, True), suffix]).way.draft == "m"


def test_free_chat_takes_no_draft_model() -> None:
    """The case that the advice is there for: the draft model loses, and what costs nothing costs nothing."""
    model = judged("suffix,m", 0.88, (0.82, 0.94), True)
    draft, said = choose([model, judged("suffix", 1.0, (0.98, 1.02))], True, 12)
    assert (draft, said.draft, said.decision) == ("suffix", "suffix", "not worth it")
    draft, said = choose([model, judged("suffix", 0.95, (0.92, 0.98))], True, 12)
    assert (draft, said.draft, said.decision) == ("none", "suffix", "off")
    draft, said = choose([model], True, 12)
    assert (draft, said.draft, said.decision) == ("none", "suffix,m", "off")


def test_code_edits_take_it() -> None:
    both = [judged("suffix", 2.4, (2.1, 2.8)), judged("suffix,m", 2.9, (2.5, 3.3), True)]
    assert choose(both, True, 8)[0] == "suffix,m"
    assert verdict("code editing", both, True, 8).decision == "on"
    assert verdict("code editing", both, True, 8, preferred="suffix").draft == "suffix,m"


@given(st.lists(st.tuples(st.booleans(), SPEEDS, SPEEDS, SPEEDS), min_size=1, max_size=6))
def test_what_is_chosen_never_measures_slower(ways: list[tuple[bool, float, float, float]]) -> None:
    """A way that may be slower than plain decoding is never taken, nor one clearly slower than the best that is on."""
    every = [
        judged(f"{'m' if model else 's'}{i}", sorted(three)[1], (min(three), max(three)), model)
        for i, (model, *three) in enumerate(ways)
    ]
    draft, said = choose(every, True, 5)
    if draft == "none":
        assert said.decision != "on"
        return
    taken = next(j for j in every if j.way.draft == draft)
    assert said.draft == draft
    if taken.way.model:
        assert said.decision == "on" and taken.speed.interval is not None and taken.speed.interval[0] > 1
    assert taken.speed.speedup >= 0.99
    if said.decision == "on":
        assert taken.speed.speedup >= SAME * max(j.speed.speedup for j in every) or taken.way.model is None
