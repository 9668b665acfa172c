"""Measuring and auditing, on toy models whose right answers are known; each alarm is seen to go off."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers import Always, markov_table, toy_engine
from slipstream.advise import audit, measure
from slipstream.advise.compare import TIE_BOUND, compare, first_difference
from slipstream.advise.workload import load
from slipstream.core import verify
from slipstream.core.sampling import Sampler
from slipstream.core.stats import Stats
from slipstream.core.types import Array, Draft, SamplingParams, Verdict
from slipstream.errors import InputError
from slipstream.generation import Request, Result, Usage
from slipstream.models.toy import constant

TABLE = markov_table(8)
TEXT = "abcabcab"


def gullible(draft: Draft, rows: Array, sampler: Sampler, position: int) -> Verdict:
    """A broken verifier: believes every drafted token."""
    n = len(draft)
    return Verdict(tuple(range(n)), sampler.pick(rows[n], position + n, draft.tokens))


def test_where_two_texts_part() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


@pytest.mark.parametrize(("gap", "verdict"), [(TIE_BOUND - 0.1, "near tie"), (TIE_BOUND + 0.1, "mismatch")])
def test_a_difference_passes_only_at_a_near_tie(gap: float, verdict: str) -> None:
    engine = toy_engine(constant([1.0, 1.0 + gap, -5.0, -5.0]), 4)
    found = compare(engine, [2, 3], SamplingParams(), [1, 1, 1], [1, 0, 1])
    assert (found.verdict, found.at) == (verdict, 1)
    assert found.gap == pytest.approx(gap, abs=1e-5)
    assert engine.generate([2, 3], max_tokens=3, reuse_cache=True).ids == (1, 1, 1), "the engine is as it was"


def test_the_gap_is_that_of_the_choice_itself_with_penalties_and_noise() -> None:
    params = SamplingParams(temperature=0.7, frequency_penalty=0.5, seed=3)
    engine = toy_engine(TABLE, 8)
    output = engine.generate([1, 2], max_tokens=6, sampling=params).ids
    sampler = Sampler(params, [1, 2])
    for token in output[:5]:
        sampler.append(token)
    row = TABLE([1, 2, *output[:5]])
    assert sampler.behind(row, 7, output[5]) == 0
    for other in set(range(8)) - {output[5]}:
        found = compare(engine, [1, 2], params, output, (*output[:5], other))
        assert found.gap == pytest.approx(sampler.behind(row, 7, other), rel=1e-5)
        assert (found.verdict == "near tie") == (found.gap < TIE_BOUND)


def test_a_token_that_nobody_would_say_is_no_near_tie_however_close_the_best_two_are() -> None:
    engine = toy_engine(constant([1.0, 1.01, -5.0, -5.0]), 4)
    assert compare(engine, [2, 3], SamplingParams(), [1, 1, 1], [1, 0, 1]).verdict == "near tie"
    assert compare(engine, [2, 3], SamplingParams(), [1, 1, 1], [1, 3, 1]).verdict == "mismatch"


def result(tokens: int, seconds: float, verified: int = 0, accepted: int = 0) -> Result:
    stats = Stats(steps=tokens, emitted=tokens, forward_s=seconds, verified=verified, accepted=accepted)
    return Result("", (), (), (), "length", Usage(1, tokens, 0), stats, ())


def sample_of(*seconds: tuple[float, float]) -> measure.Sample:
    pairs = tuple(measure.Pair(result(100, plain), result(100, spec, 10, 4)) for plain, spec in seconds)
    return measure.Sample("chat", pairs, None)


def test_a_row_is_the_median_of_runs_and_its_interval_holds_it() -> None:
    row = measure.row(
        "chat", [sample_of((2.0, 1.0), (2.2, 1.0), (50.0, 1.0)), sample_of((2.0, 1.0), (2.0, 1.0), (2, 1))]
    )
    assert row.plain_tps == pytest.approx(200 / 4.2)
    assert row.spec_tps == pytest.approx(100)
    assert row.speedup == pytest.approx(2.1)
    assert row.acceptance_rate == pytest.approx(0.4)
    assert row.interval is not None and row.interval[0] <= row.speedup <= row.interval[1]
    assert row.interval == measure.row("chat", [sample_of((2.0, 1.0), (2.2, 1.0), (50.0, 1.0)), sample_of(*[(2.0, 1.0)] * 3)]).interval  # fmt: skip  # noqa: E501


@pytest.mark.parametrize(
    ("seconds", "word"),
    [
        ([(2.0, 1.0), (2.1, 1.0), (2.2, 1.1)], "pays: 2.00x"),
        ([(1.0, 1.5), (1.0, 1.6), (1.1, 1.6)], "costs: 0.67x - leave it off"),
        ([(1.0, 1.0), (1.0, 0.99), (1.0, 1.01)], "no gain: 1.00x"),
        ([(1.0, 4.0), (4.0, 1.0), (4.0, 1.0)], "too noisy to tell: 4.00x"),
    ],
)
def test_the_verdict_is_honest(seconds: list[tuple[float, float]], word: str) -> None:
    assert measure.verdict(measure.row("chat", [sample_of(*seconds)])) == word


def test_rounds_alternate_and_stop_where_told() -> None:
    engine = toy_engine(TABLE, 8, "suffix")
    works = [measure.Work("a", TEXT), measure.Work("b", TEXT + "c")]
    session = measure.Workload(engine, works, raw=True, max_tokens=12)
    seen = []
    for work in session.rounds(5, stopped=lambda: len(seen) >= 3):
        seen.append(work.kind)
    assert seen == ["a", "b", "a"]
    samples = session.samples()
    assert [len(s.pairs) for s in samples] == [2, 1]
    assert all(s.comparison is not None and s.comparison.identical for s in samples)
    assert all(p.plain.stats.verified == 0 for s in samples for p in s.pairs)
    assert sum(p.spec.stats.verified for s in samples for p in s.pairs) > 0


def test_a_run_that_is_stopped_keeps_its_text() -> None:
    engine = toy_engine(TABLE, 8)
    chunks = []
    found = measure.run(engine, Request(TEXT, max_tokens=50), chunks.append, lambda: len(chunks) >= 4)
    assert found.finish_reason == "cancelled"
    assert len(found.ids) == 4 and found.text == "".join(c.text for c in chunks)


def test_the_audit_passes_a_sound_engine_and_says_what_it_saw() -> None:
    works = [measure.Work("a", TEXT), measure.Work("b", "aabbaab")]
    for temperature in (0.0, 0.8):
        check = audit.same_text(toy_engine(TABLE, 8, "suffix"), works, 32, temperature)
        assert check.passed is True, check
        assert check.facts["verified"] > 0
    for name in ("rejection", "block"):
        checks = list(audit.distribution(toy_engine(TABLE, 8, "suffix", k=3), name, 600, 0.0005, text=TEXT))
        assert [c.passed for c in checks] == [True, True], checks


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_audit_finds_wrong_text(monkeypatch: pytest.MonkeyPatch, temperature: float) -> None:
    monkeypatch.setitem(verify.VERIFY, "exact", gullible)
    works = [measure.Work("a", TEXT), measure.Work("b", "aabbaab")]
    check = audit.same_text(toy_engine(TABLE, 8, "suffix"), works, 32, temperature)
    assert check.passed is False
    assert check.facts["differences"][0]["gap"] > TIE_BOUND


@pytest.mark.parametrize("broken", [gullible, verify.typical], ids=["believes all", "typical"])
def test_the_audit_finds_a_wrong_distribution(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[Draft, Array, Sampler, int], Verdict]
) -> None:
    monkeypatch.setitem(verify.VERIFY, "rejection", broken)
    engine = toy_engine(TABLE, 8, k=3)
    likeliest = int(TABLE(engine.tokenizer.encode(TEXT)).argmax())
    engine = toy_engine(TABLE, 8, Always(likeliest), k=3)
    checks = list(audit.distribution(engine, "rejection", 400, 0.0005, text=TEXT))
    assert False in [c.passed for c in checks]


def test_the_audit_says_when_nothing_was_drafted() -> None:
    engine = toy_engine(TABLE, 8, "suffix")
    assert audit.same_text(engine, [measure.Work("a", "a")], 1, 0.0).passed is None
    assert next(iter(audit.distribution(engine, "rejection", 20, 0.001, text="abcdefgh"))).passed is None


def test_the_temperature_leaves_one_half_to_the_likeliest() -> None:
    row = np.array([9.0, 1.0, 0.5, -2.0, -3.0], np.float32)
    params = SamplingParams(temperature=audit.even_temperature(row))
    assert Sampler(params).filtered(row).probs().max() == pytest.approx(0.5, abs=1e-3)


def test_chi_square_pools_rare_tokens_and_has_the_stated_size() -> None:
    p = np.array([0.5, 0.3, 0.19] + [0.01 / 50] * 50)
    rng = np.random.default_rng(5)
    values = [audit.chi_square(rng.choice(p.size, 400, p=p).tolist(), p)[2] for _ in range(400)]
    assert 2 <= sum(v < 0.05 for v in values) <= 38, "20 of 400 are expected"
    statistic, cells, value = audit.chi_square([0] * 200 + [1] * 120 + [2] * 80, p)
    assert cells == 3 and value > 0.5 and statistic < 2
    assert audit.chi_square([0] * 400, p)[2] < 1e-9
    assert audit.chi_square([3], np.array([0.5, 0.5, 0.0, 0.0]))[2] == 0


def test_bad_lines_of_a_workload_are_numbered_and_the_rest_is_used(tmp_path: Path) -> None:
    file = tmp_path / "w.jsonl"
    good = [{"prompt": "hello"}, {"kind": "x", "messages": [{"role": "user", "content": "hi"}]}]
    bad = ["{", "[]", '{"prompt": ""}', '{"prompt": "a", "messages": []}', '{"promt": "a"}', '{"messages": [{}]}']
    file.write_text("\n".join([json.dumps(good[0]), "", *bad, json.dumps(good[1])]))
    loaded = load(file)
    assert [w.kind for w in loaded.works] == ["chat", "x"]
    assert [where for where, _ in loaded.bad] == [f"line {n}" for n in (3, 4, 5, 6, 7, 8)]
    file.write_text("{}\n")
    with pytest.raises(InputError, match="no usable prompt; line 1: give either prompt or messages"):
        load(file)
