"""Prices: a list measured in virtual time is the list that was given, it is followed, kept on disk and read back."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream import pricing
from slipstream.core.cost import GRID, Curve, Prices, break_even, measure
from slipstream.errors import InputError
from slipstream.models.toy import constant
from virtual import CURVES, Clock, TimedModel

N = 8
STAIRS = Curve((1, 2, 4, 8), (0.010, 0.016, 0.012, 0.020), context=100, per_past=1e-5, per_past_token=2e-6)


# -- curve ------------------------------------------------------------------------------------------------------------


def test_between_and_beyond_the_sizes_that_were_measured() -> None:
    for n, ms in ((1, 10), (2, 16), (4, 12), (8, 20), (3, 14), (6, 16), (12, 28), (16, 36)):
        assert STAIRS.at(n, 100) == pytest.approx(ms / 1000)
    assert Curve((1,), (0.02,)).at(3, 0) == pytest.approx(0.06)  # nothing better is known
    falling = Curve((1, 8, 16), (0.03, 0.02, 0.01))
    assert falling.at(64, 0) == pytest.approx(0.01)  # never below what was seen, so never 0


def test_it_grows_with_the_context_by_forward_and_by_token() -> None:
    for n in (1, 4, 8):
        grown = STAIRS.at(n, 1100) - STAIRS.at(n, 100)
        assert grown == pytest.approx(1000 * (1e-5 + n * 2e-6))
    assert STAIRS.at(1, 0) == pytest.approx(0.010 - 100 * 1.2e-5)
    steep = Curve((1,), (0.01,), context=1000, per_past=1e-4)
    assert steep.at(1, 0) > 0


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [
        ((), ()),
        ((2, 4), (0.1, 0.2)),
        ((1, 4, 2), (0.1, 0.2, 0.3)),
        ((1, 1), (0.1, 0.2)),
        ((1, 2), (0.1,)),
        ((1, 2), (0.1, 0.0)),
        ((1, 2), (0.1, float("nan"))),
        ((1, 2), (0.1, float("inf"))),
        ((1, 2), (-0.1, 0.2)),
    ],
)
def test_what_is_no_price_list_is_refused(sizes: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="price list"):
        Curve(sizes, seconds)


@pytest.mark.parametrize("curve", [STAIRS, *CURVES.values()])
def test_a_saved_list_comes_back(curve: Curve) -> None:
    assert Curve.of(json.loads(json.dumps(curve.as_dict()))) == curve


GOOD: dict[str, Any] = STAIRS.as_dict()


@pytest.mark.parametrize("bad", [{"sizes": 3}, {"seconds": ["a"]}, {"sizes": None}, {"context": "x"}, {"per_past": {}}])
def test_a_damaged_list_is_an_input_error(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="price list"):
        Curve.of(GOOD | bad)
    for name in GOOD:
        with pytest.raises(InputError, match="price list"):
            Curve.of({k: v for k, v in GOOD.items() if k != name})


# -- prices -----------------------------------------------------------------------------------------------------------


def test_prices_begin_as_the_curve() -> None:
    p = Prices(STAIRS)
    assert all(p.seconds(n, 300) == STAIRS.at(n, 300) for n in GRID) and p.seconds(0, 300) == 0.0


@pytest.mark.parametrize("factor", [2.0, 0.5])
@pytest.mark.parametrize("sizes", [(1,), (1, 8), (4,)])
def test_a_change_of_speed_is_followed_within_three_dozen_steps(sizes: tuple[int, ...], factor: float) -> None:
    p, rng = Prices(STAIRS), np.random.default_rng(1)
    for i in range(36 * len(sizes)):
        n = sizes[i % len(sizes)]
        p.observe(n, 100, factor * STAIRS.at(n, 100) * (1 + 0.03 * rng.standard_normal()))
    for n in sizes:
        assert p.seconds(n, 100) == pytest.approx(factor * STAIRS.at(n, 100), rel=0.1)
    if 1 in sizes:  # other sizes are thought to have changed alike: the stairs are kept
        for n in (2, 3, 4, 16):
            assert p.seconds(n, 100) == pytest.approx(factor * STAIRS.at(n, 100), rel=0.1)
        assert p.seconds(4, 100) < p.seconds(3, 100) < p.seconds(2, 100)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("factor", [100.0, 0.01])
def test_one_outlier_moves_little(n: int, factor: float) -> None:
    p = Prices(STAIRS)
    p.observe(n, 100, factor * STAIRS.at(n, 100))
    for m in (1, 2, 4, 8):
        assert p.seconds(m, 100) == pytest.approx(STAIRS.at(m, 100), rel=0.06)


def test_a_size_of_its_own_is_learnt_and_forgotten_in_time() -> None:
    p = Prices(STAIRS)
    for _ in range(60):  # 4 tokens cost twice what was measured, and a plain step what it did
        p.observe(4, 100, 2 * STAIRS.at(4, 100))
        p.observe(1, 100, STAIRS.at(1, 100))
    assert p.seconds(4, 100) == pytest.approx(2 * STAIRS.at(4, 100), rel=0.15)
    assert p.seconds(1, 100) == pytest.approx(STAIRS.at(1, 100), rel=0.05)
    assert p.seconds(8, 100) == pytest.approx(STAIRS.at(8, 100), rel=0.05)
    for _ in range(1500):
        p.observe(1, 100, STAIRS.at(1, 100))
    assert p.seconds(4, 100) == pytest.approx(STAIRS.at(4, 100), rel=0.05)


def test_what_says_nothing_changes_nothing() -> None:
    p = Prices(STAIRS)
    for n, seconds in ((0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0)):
        p.observe(n, 100, seconds)
    assert all(p.seconds(n, 300) == STAIRS.at(n, 300) for n in GRID)


@given(st.lists(st.tuples(st.integers(1, 20), st.floats(1e-9, 1e3)), max_size=60))
def test_prices_stay_prices(seen: list[tuple[int, float]]) -> None:
    p = Prices(STAIRS)
    for n, seconds in seen:
        p.observe(n, 100, seconds)
    assert all(0 < p.seconds(n, 100) < 1e4 for n in range(1, 30))


def test_behind_a_strange_context_the_first_step_says_what_it_costs() -> None:
    wrong = Curve(STAIRS.sizes, STAIRS.seconds, 16, 1e-5, 0.0)
    p = Prices(wrong)
    assert not p.strange(500) and p.strange(4000)
    p.observe(1, 4000, wrong.at(1, 4000) / 2)
    assert p.seconds(1, 4000) == pytest.approx(wrong.at(1, 4000) / 2)
    assert not p.strange(7000) and p.strange(9000)


# -- measuring --------------------------------------------------------------------------------------------------------


def timed(curve: Curve, noise: float = 0.0, **model: Any) -> tuple[TimedModel, Clock]:
    clock = Clock()
    return TimedModel(clock, curve, constant([0.0] * N), N, noise=noise, **model), clock


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("name", CURVES)
def test_a_staircase_is_measured_as_it_is(name: str, recurrent: bool) -> None:
    model, clock = timed(CURVES[name], recurrent=recurrent)
    found = measure(model, clock, budget_s=1e6)
    assert found.sizes == tuple(n for n in GRID if n <= 33)
    for n in (*found.sizes, 9, 14, 40):
        for context in (16, 500, 3000):
            if n in found.sizes or name in ("flat", "linear"):  # between them it can only be guessed
                assert found.at(n, context) == pytest.approx(CURVES[name].at(n, context), rel=1e-6)
    assert model.n_past(0) == 0


def test_of_noisy_times_the_median_counts_and_their_spread_is_told() -> None:
    model, clock = timed(CURVES["avx"], noise=0.03)
    found = measure(model, clock, budget_s=1e6)
    for n in found.sizes:
        assert 0.95 <= found.at(n, 16) / CURVES["avx"].at(n, 16) <= 1.08
    assert 1.0 < found.spread < 1.1
    model, clock = timed(CURVES["avx"])
    assert measure(model, clock, budget_s=1e6).spread == pytest.approx(1.0)


def test_a_small_budget_is_kept_and_still_gives_a_list() -> None:
    model, clock = timed(CURVES["amx"])
    found = measure(model, clock, budget_s=0.0)
    assert {1, 4, 8, 16} <= set(found.sizes) and clock.now < 7.0
    assert found.at(4, 16) == pytest.approx(CURVES["amx"].at(4, 16))
    model, clock = timed(CURVES["amx"])
    longer = measure(model, clock, budget_s=4.0)
    assert clock.now < 4.0 + 5.0 and {1, 2, 3, 4, 6, 8, 16} <= set(longer.sizes)


@pytest.mark.parametrize(("n_ctx", "n_batch"), [(18, 64), (24, 64), (64, 64), (64, 4), (512, 1)])
def test_small_contexts_and_batches(n_ctx: int, n_batch: int) -> None:
    model, clock = timed(CURVES["amx"], n_ctx=n_ctx, n_batch=n_batch)
    found = measure(model, clock, budget_s=1e6)
    assert found.sizes[-1] <= min(n_batch, n_ctx - 17)
    assert found.at(1, 16) == pytest.approx(CURVES["amx"].at(1, 16)) and model.n_past(0) == 0


@pytest.mark.parametrize("n_ctx", [4, 17])
def test_a_context_smaller_than_the_measurement_s_own(n_ctx: int) -> None:
    model, clock = timed(CURVES["amx"], n_ctx=n_ctx)
    assert measure(model, clock, budget_s=1e6).sizes[0] == 1


@given(st.integers(1, 12), st.floats(0.5, 14))
def test_break_even_is_the_least_rate_that_pays(n: int, times: float) -> None:
    pays = [p / 1000 for p in range(1001) if sum((p / 1000) ** i for i in range(n)) >= times - 1e-9]
    found = break_even(n, times)
    if found is None:
        assert times > n and not pays
    else:
        assert found == pytest.approx(pays[0], abs=0.0011)


# -- on disk ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(pricing.Others, "share", lambda self: 0.0)  # whatever else this machine is doing
    return tmp_path / "home"


def listed(name: str = "k", fresh: bool = False) -> tuple[Curve, int]:
    """The list, and the forwards that it took."""
    model, clock = timed(CURVES["amx"])
    return pricing.price_list(name, model, {"model": "toy"}, fresh, clock), len(model.forwards)


def test_a_list_is_measured_once_and_then_read(home: Path) -> None:
    curve, forwards = listed()
    assert forwards > 20
    again, none = listed()
    assert again == curve and none == 0 and pricing.saved("k") == curve
    assert listed("other")[1] > 20 and listed(fresh=True)[1] > 20
    kept = json.loads((home / "prices" / "k.json").read_text())
    assert kept["model"] == "toy" and kept["date"] and Curve.of(kept["curve"]) == curve


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        *(json.dumps({"curve": c}) for c in (1, GOOD | {"seconds": [0]}, GOOD | {"context": None})),
    ],
)
def test_a_damaged_list_is_measured_again(home: Path, damage: str) -> None:
    curve, _ = listed()
    (home / "prices" / "k.json").write_text(damage)
    assert pricing.saved("k") is None
    again, forwards = listed()
    assert again == curve and forwards > 20 and pricing.saved("k") == curve


def test_a_list_is_not_kept_when_others_used_the_machine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pricing.Others, "share", lambda self: 0.9)
    assert listed()[1] > 20 and pricing.saved("k") is None and listed()[1] > 20
    monkeypatch.setattr(pricing.Others, "share", lambda self: 0.0)
    assert listed()[1] > 20 and pricing.saved("k") is not None
    model, clock = timed(CURVES["small"], noise=0.4)  # times that differ that much have had company
    assert pricing.price_list("noisy", model, {}, clock=clock).spread > pricing.DISTURBED
    assert pricing.saved("noisy") is None


def test_the_share_of_others_is_a_share() -> None:
    assert 0.0 <= pricing.Others().share() <= 1.0


def test_other_files_and_settings_have_other_keys(tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    a.write_bytes(b"x" * 3_000_000 + b"1")
    b.write_bytes(b"x" * 3_000_000 + b"2")
    c.write_bytes(b"x" * 3_000_000 + b"1")
    keys = {
        pricing.key(path, **settings)
        for path in (a, b)
        for settings in ({"threads": 1}, {"threads": 2}, {"threads": 1, "build": "x"}, {"threads": 1, "build": "y"})
    }
    assert len(keys) == 8
    assert pricing.key(a, threads=1, build="x") == pricing.key(c, build="x", threads=1)


def test_a_folder_that_cannot_be_written_only_warns(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    home.parent.mkdir(exist_ok=True)
    home.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, "slipstream"):
        curve, _ = listed()
    assert curve.at(1, 16) == pytest.approx(CURVES["amx"].at(1, 16)) and "cannot be kept" in caplog.text
