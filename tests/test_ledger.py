"""The account of bets: what a token is worth, when to be careful, and how much probes and readings may take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.core.ledger import PROBE_SHARE, WRITE_OFF, Ledger

PLAIN = 0.1  # seconds of a plain step


def plainly(ledger: Ledger, steps: int) -> Ledger:
    for _ in range(steps):
        ledger.book(1, PLAIN, PLAIN, bet=False)
    return ledger


def test_the_rate_is_that_of_late() -> None:
    ledger = Ledger()
    assert ledger.rate() == 0.0
    assert plainly(ledger, 50).rate() == pytest.approx(10.0)
    for _ in range(100):
        ledger.book(4, 2 * PLAIN, PLAIN, bet=True)
    assert ledger.rate() == pytest.approx(20.0, rel=0.01)
    assert plainly(ledger, 100).rate() == pytest.approx(10.0, rel=0.03)


def test_lost_bets_call_for_more_and_more_caution_and_winnings_end_it() -> None:
    ledger, margins = Ledger(), []
    for _ in range(30):
        ledger.book(1, 2 * PLAIN, PLAIN, bet=True)
        margins.append(ledger.margin(PLAIN))
    assert margins[0] == margins[1] == 0.0 < margins[3] < margins[10] < margins[-1]  # a stake may be lost first
    assert margins == sorted(margins) and margins[-1] <= 3.0
    for _ in range(40):
        ledger.book(4, 2 * PLAIN, PLAIN, bet=True)
    assert ledger.margin(PLAIN) == 0.0 and ledger.affords(5 * PLAIN)


def test_an_overdrawn_account_recovers_slowly_so_that_losses_stay_below_half_a_percent() -> None:
    ledger, lost, steps = Ledger(), 0.0, 4000
    for _ in range(steps):  # a bet that loses one plain step whenever the account is not overdrawn
        bet = ledger.margin(PLAIN) == 0.0
        ledger.book(1, (2 if bet else 1) * PLAIN, PLAIN, bet)
        lost += bet * PLAIN
    assert 0 < lost <= (0.005 * steps + 4) * PLAIN


def test_winnings_are_capped_so_that_a_long_good_time_cannot_be_gambled_away() -> None:
    ledger = Ledger()
    for _ in range(1000):
        ledger.book(8, PLAIN, PLAIN, bet=True)
    assert not ledger.affords(25 * PLAIN)
    steps = 0
    while ledger.margin(PLAIN) == 0.0:
        ledger.book(1, 2 * PLAIN, PLAIN, bet=True)
        steps += 1
    assert steps < 30


def test_plain_steps_win_and_lose_nothing_however_long_they_take() -> None:
    ledger = Ledger()
    for _ in range(20):
        ledger.book(1, 3 * PLAIN, PLAIN, bet=False)
    assert ledger.margin(PLAIN) == 0.0


def test_probes_have_a_budget_of_their_own() -> None:
    ledger = plainly(Ledger(), 100)
    assert ledger.probe_s == pytest.approx(100 * PLAIN * PROBE_SHARE)
    ledger.book(1, PLAIN + 0.08, PLAIN, bet=True, probe_s=0.08)
    assert ledger.probe_s == pytest.approx(100 * PLAIN * PROBE_SHARE + PROBE_SHARE * (PLAIN + 0.08) - 0.08)
    assert ledger.margin(PLAIN) == 0.0  # and cost the bets nothing
    assert plainly(Ledger(), 20_000).probe_s <= 10 * PLAIN  # nor are they saved up for ever


def test_what_serves_later_tokens_too_is_paid_for_over_them() -> None:
    ledger = plainly(Ledger(), 1)
    ledger.book(4, 2 * PLAIN + 1.0, PLAIN, bet=True, invested_s=1.0)
    assert ledger.margin(PLAIN) == 0.0
    for _ in range(3 * WRITE_OFF):
        ledger.book(1, PLAIN, PLAIN, bet=True)
    assert ledger.margin(PLAIN) > 0.0  # 1 second was a bad buy for this


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(1e-6, 10), st.booleans()), max_size=80))
def test_an_account_never_says_nonsense(steps: list[tuple[int, float, bool]]) -> None:
    ledger = Ledger()
    for tokens, seconds, bet in steps:
        ledger.book(tokens, seconds, PLAIN, bet)
        assert 0.0 <= ledger.margin(PLAIN) <= 3.0 and ledger.rate() > 0.0 and ledger.probe_s <= 10 * PLAIN


def test_another_text_starts_with_the_account_but_not_with_the_rates() -> None:
    ledger = Ledger()
    for _ in range(30):
        ledger.book(4, 2 * PLAIN, PLAIN, bet=True, idle=["model"])
    assert ledger.rate() > 15 and ledger.rate("model") > 15
    ledger.begin()
    assert ledger.rate() == ledger.rate("model") == 0.0 and ledger.affords(5 * PLAIN)
