"""The priced policy with several slots in one forward, and with a long prompt that a draft model has not read."""

from __future__ import annotations

import functools

import pytest

from slipstream.core.cost import Prices
from slipstream.core.ledger import PROBE_SHARE
from slipstream.core.policy import Off
from slipstream.core.ports import Room, Source
from slipstream.core.priced import _READ_LEAST, _READ_SHARE, Priced
from slipstream.generation import Request
from virtual import CURVES, Batch, Bench, batch, guessing, text

FROM, TO = 64, 364
SEEDS = range(2)


@functools.cache
def plain(name: str, seed: int) -> Batch:
    return batch(Bench(CURVES[name], text(TO + 40, seed), seed=seed, n_slots=4), TO)


@pytest.mark.parametrize(
    ("name", "share"),
    [(n, share) for share in (None, 0.02) for n in CURVES],
)
def test_wrong_drafts_in_all_slots_cost_less_than_2_percent(name: str, share: float | None) -> None:
    for seed in SEEDS if share is None else SEEDS[:1]:
        bench, _ = guessing(name, seed, 0.0, share, TO, n_slots=4)
        run = batch(bench, TO)
        assert run.texts == plain(name, seed).texts
        assert run.seconds(FROM, TO) <= plain(name, seed).seconds(FROM, TO) / 0.98, seed


@pytest.mark.parametrize("name", ["avx", "flat", "small"])
def test_nor_do_costly_ones(name: str) -> None:
    for seed in SEEDS:
        bench, _ = guessing(name, seed, 0.0, 0.2, 300, n_slots=4)
        assert batch(bench, 300).seconds(FROM, 300) <= plain(name, seed).seconds(FROM, 300) / 0.98, seed


@pytest.mark.parametrize("name", CURVES)
def test_slots_share_the_budget_of_probes(name: str) -> None:
    bench, guess = guessing(name, 0, 0.0, 0.2, 300, n_slots=4)
    guess.probing = lambda slot: (slot, "guess") in bench.policy._probes  # type: ignore[method-assign]
    run = batch(bench, 300)
    probes = [seconds for _, seconds, probe in guess.spent if probe]
    assert sum(probes) <= PROBE_SHARE * run.times[-1] + max(probes)


@pytest.mark.parametrize("share", [None, 0.02])
@pytest.mark.parametrize("name", CURVES)
def test_nodes_go_to_the_slot_where_guesses_are_right(name: str, share: float | None) -> None:
    """The others' guesses are wrong, and while it runs all four together are not slower than plain."""
    for seed in SEEDS if share is None else SEEDS[:1]:
        bench, _ = guessing(name, seed, 1.0, share, TO, slots=[0], n_slots=4)
        run, nodes = batch(bench, TO), [0] * 4
        good = [r for r in run.records if r.slot == 0]
        first = next(i for i, r in enumerate(good) if r.position > FROM)
        for slot in range(4):
            nodes[slot] = sum(r.verified for r in [r for r in run.records if r.slot == slot][first : len(good)])
        assert nodes[0] >= 2 * max(nodes[1:]) or name == "linear", (seed, nodes)
        begin, end = run.slots[0][FROM], run.slots[0][-1]
        said = sum(begin < t <= end for times in run.slots for t in times)
        as_plain = 4 * (TO - FROM) / plain(name, seed).seconds(FROM, TO) * (end - begin)
        assert said >= 0.98 * as_plain, seed
        if share is None:
            assert run.seconds(FROM, TO) <= plain(name, seed).seconds(FROM, TO) / 0.98, seed


def test_the_others_pay_little_for_one_slot_s_costly_drafts() -> None:
    """Tokens of all slots count alike: the others may wait for what one gains, but not a tenth longer."""
    for seed in SEEDS:
        bench, _ = guessing("amx", seed, 1.0, 0.2, TO, slots=[0], n_slots=4)
        assert batch(bench, TO).seconds(FROM, TO) <= 1.1 * plain("amx", seed).seconds(FROM, TO), seed


def test_wrong_drafts_stop_while_another_slot_reads_its_prompt() -> None:
    bench, _ = guessing("amx", 0, 0.0, None, 300, n_slots=2)
    first = bench.engine.submit(Request([0], max_tokens=200))
    bench.engine.submit(Request([0] * 3000, max_tokens=1))
    verified = []
    while not first.done:
        record = bench.engine.step()[first].record
        verified.append(record.verified if record else 0)
    assert sum(verified[20:40]) == 0, verified[:50]


# -- a long prompt that a draft model has not read --------------------------------------------------------------------


def readable(name: str, each: float, left: int, context: int) -> float:
    """Tokens that cost the stated share of the rest of the answer's time."""
    many = each * (1 + 0.1 * (_READ_LEAST - 1))
    return max(_READ_LEAST * _READ_SHARE[0] * left * CURVES[name].at(1, context) / many, _READ_LEAST) + 1


@pytest.mark.parametrize("n", [60, 300])
@pytest.mark.parametrize("share", [0.05, 0.3])
@pytest.mark.parametrize("name", CURVES)
def test_a_backlog_is_read_within_its_share(name: str, share: float, n: int) -> None:
    base, _ = guessing(name, 0, 0.0, share, n, n_prompt=3000)
    base.policy = base.engine.policy = Off()  # type: ignore[assignment]
    plainly = base.run(n)
    for p in (0.0, 0.9):
        bench, guess = guessing(name, 0, p, share, n, n_prompt=3000)
        run = bench.run(n)
        long = [r for r in guess.reads if r > _READ_LEAST]
        assert all(r <= readable(name, share * CURVES[name].at(1, 16), n, 3000) for r in long[:1]), p
        if p == 0.0:
            assert max(guess.reads, default=0) <= max([_READ_LEAST, n, *long[:1]]), "there is nothing to read more for"
        else:  # the rest of it is read when that much has been won
            assert run.seconds(1, n) <= plainly.seconds(1, n) + 3 * CURVES[name].at(1, 3000)
        if n > FROM:
            assert run.seconds(FROM, n) <= plainly.seconds(FROM, n) / 0.98, p


@pytest.mark.parametrize(("active", "kept"), [(1, False), (2, True)])
def test_rates_are_forgotten_only_by_a_text_that_is_alone(active: int, kept: bool) -> None:
    policy, source = Priced(Prices(CURVES["flat"])), Source("suffix")
    policy.ledger.book(4, 0.04, 0.03, bet=True)
    policy.begin(1)
    policy.want(Room(1, 10, 50, active=active), source, ())
    assert (policy.ledger.rate() > 0) == kept
    policy.ledger.book(4, 0.04, 0.03, bet=True)
    policy.want(Room(1, 14, 46), source, ())
    assert policy.ledger.rate() > 0, "only at its beginning"
