"""Counters of other engines mean what our own mean: the same steps, told in each server's way, give the same."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.advise.counters import Counters, between, combine, count, from_timings, read, total
from slipstream.core.stats import Stats
from slipstream.core.types import StepRecord

Steps = Sequence[tuple[int, int]]  # drafted and accepted tokens of each forward after the prompt's

# What llama.cpp's server shows (first part), cut to what matters and its neighbours.
LLAMA = """\
# HELP llamacpp:tokens_predicted_total Number of generation tokens processed
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total {generated}
# HELP llamacpp:spec_decode_num_draft_tokens_total Speculative: Total draft tokens generated
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:spec_decode_num_draft_tokens_total {drafted}
# HELP llamacpp:spec_decode_num_accepted_tokens_total Speculative: Total draft tokens accepted by the target model
# TYPE llamacpp:spec_decode_num_accepted_tokens_total counter
llamacpp:spec_decode_num_accepted_tokens_total {accepted}
# HELP llamacpp:spec_decode_num_drafts_total Speculative: Total speculative decoding verification steps
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total {drafts}
# HELP llamacpp:predicted_tokens_seconds Average generation throughput in tokens/s
# TYPE llamacpp:predicted_tokens_seconds gauge
llamacpp:predicted_tokens_seconds nan
"""
SGLANG = """\
# HELP sglang:spec_accept_length The average acceptance length of speculative decoding.
# TYPE sglang:spec_accept_length gauge
sglang:spec_accept_length{engine_type="unified",model_name="m",tp_rank="0"} 2.5
# TYPE sglang:spec_accept_rate gauge
sglang:spec_accept_rate{engine_type="unified",model_name="m",tp_rank="0"} 0.75
# TYPE sglang:generation_tokens_total counter
sglang:generation_tokens_total{model_name="m"} 7557572.0
"""


def own(steps: Steps) -> Stats:
    """As our engine counts them."""
    stats = Stats()
    for drafted, accepted in steps:
        stats.add(
            StepRecord(
                slot=0, position=0, proposed=drafted, verified=drafted, depth=drafted, accepted=accepted,
                emitted=accepted + 1, prefilled=0, draft_s=0.0, forward_s=1.0, verify_s=0.0,
            )
        )  # fmt: skip
    return stats


def positions(steps: Steps) -> dict[int, int]:
    deepest = max((d for d, _ in steps), default=0)
    return {i: sum(a > i for _, a in steps) for i in range(deepest)}


def tokens(steps: Steps) -> int:
    return 1 + sum(a + 1 for _, a in steps)


def sums(steps: Steps, answers: int = 1) -> dict[str, int]:
    drafting = [(d, a) for d, a in steps if d]
    return {
        "generated": tokens(steps) - 1 + answers if steps else 0,
        "drafted": sum(d for d, _ in drafting),
        "accepted": sum(a for _, a in drafting),
        "drafts": len(drafting),
    }


def llama(steps: Steps, answers: int = 1) -> str:
    name = "llamacpp:spec_decode_num_accepted_tokens_per_pos_total"
    lines = [f'{name}{{position="{i}"}} {n}' for i, n in positions(steps).items()]
    return LLAMA.format(**sums(steps, answers)) + "".join(
        line + "\n" for line in ([f"# TYPE {name} counter", *lines] if lines else [])
    )


def timings(steps: Steps) -> dict[str, float]:
    found = sums(steps)
    drafted = {"draft_n": found["drafted"], "draft_n_accepted": found["accepted"]} if found["drafted"] else {}
    return {"predicted_n": tokens(steps), "predicted_ms": 12.5, "predicted_per_second": 80.0, **drafted}


def vllm(engines: Sequence[Steps], suffix: str = "_total") -> str:
    lines = []
    names = {"drafted": "num_draft_tokens", "accepted": "num_accepted_tokens", "drafts": "num_drafts"}
    for key, name in names.items():
        lines.append(f"# TYPE vllm:spec_decode_{name}{suffix} counter")
        for e, steps in enumerate(engines):
            label = f'{{engine="{e}",model_name="a \\"b\\" {{c}}, d"}}'
            lines.append(f"vllm:spec_decode_{name}{suffix}{label} {float(sums(steps)[key])}")
        lines.append(f"# TYPE vllm:spec_decode_{name}_created gauge")
        lines.append(f'vllm:spec_decode_{name}_created{{engine="0",model_name="m"}} 1.7e+09')
    for e, steps in enumerate(engines):
        lines.append(f'vllm:generation_tokens{suffix}{{engine="{e}",model_name="m"}} {sums(steps)["generated"]}')
        for i, n in positions(steps).items():
            label = f'{{engine="{e}",model_name="m",position="{i}"}}'
            lines.append(f"vllm:spec_decode_num_accepted_tokens_per_pos{suffix}{label} {float(n)}")
    return "\n".join(lines) + "\n"


def trimmed(counts: Sequence[int] | None) -> list[int]:
    """Without positions that nothing was accepted at."""
    found = list(counts or ())
    while found and not found[-1]:
        found.pop()
    return found


def assert_as_own(found: Counters, steps: Steps, drafts: bool = True) -> None:
    stats = own(steps)
    assert (found.drafted, found.accepted, found.emitted) == (stats.verified, stats.accepted, stats.emitted)
    assert found.forwards == stats.steps
    assert found.acceptance_rate == stats.acceptance_rate
    assert found.mean_acceptance_length == stats.mean_acceptance_length
    if drafts:
        assert found.drafts == stats.verify_steps
        assert trimmed(found.per_position) == trimmed(stats.accepted_per_position)
        if stats.verify_steps:
            assert found.length_with_draft == pytest.approx(stats.emitted_verifying / stats.verify_steps)


step = st.integers(0, 6).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d)))
answers = st.lists(step, min_size=1, max_size=12)


@given(answers, answers)
def test_the_same_steps_give_the_same_numbers_in_every_server_s_way(before: Steps, steps: Steps) -> None:
    n = tokens(steps)
    counted, alone = between(read(llama(before)), read(llama([*before, *steps], answers=2)), n)
    assert alone
    assert_as_own(counted, steps)
    said = from_timings(timings(steps), n)
    if own(steps).verified:
        assert_as_own(said, steps, drafts=False)
    assert combine(said, counted, True) == (counted, True)


@given(answers, answers, st.sampled_from(["_total", ""]))
def test_vllm_with_two_engines_and_both_spellings(one: Steps, two: Steps, suffix: str) -> None:
    before, after = read(vllm([[], []], suffix)), read(vllm([one, two], suffix))
    assert after is not None and after.engine == "vLLM"
    n = tokens(one) + tokens(two)
    found, alone = between(before, after, n)
    assert alone
    # Two answers: each has a first token that no forward after the prompt's gave.
    assert_as_own(Counters(**{**vars(found), "emitted": n - 2}), [*one, *two])


@given(st.lists(answers, min_size=1, max_size=5))
def test_totals_are_those_of_all_steps_together(parts: list[list[tuple[int, int]]]) -> None:
    everything = [s for steps in parts for s in steps]
    empty = read(llama([]))
    by_metrics = [between(empty, read(llama(steps)), tokens(steps))[0] for steps in parts]
    assert_as_own(total(by_metrics), everything)
    by_timings = total([from_timings(timings(steps), tokens(steps)) for steps in parts])
    if own(everything).verified:
        assert_as_own(by_timings, everything, drafts=False)
    else:
        assert by_timings.drafted is None and by_timings.unsaid


def test_four_rounds_of_eight() -> None:
    steps = [(8, 0), (8, 3), (8, 8), (8, 2)]
    found, _ = between(read(llama([])), read(llama(steps)), tokens(steps))
    assert (found.drafted, found.accepted, found.emitted, found.drafts) == (32, 13, 17, 4)
    assert found.per_position == (3, 3, 2, 1, 1, 1, 1, 1)
    assert found.by_position == [0.75, 0.75, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25]
    assert found.as_dict()["acceptance_rate"] == 13 / 32


def test_plain_forwards_make_the_length_shorter_than_the_engines_own_one() -> None:
    found, _ = between(read(llama([])), read(llama([(4, 4), (0, 0), (0, 0)])), 8)
    assert found.mean_acceptance_length == 7 / 3 and found.length_with_draft == 5.0


def test_a_stop_inside_a_draft_cannot_make_forwards_vanish() -> None:
    assert Counters(drafted=8, accepted=8, drafts=1, emitted=3).forwards == 1
    assert Counters(drafted=8, accepted=8, emitted=3).mean_acceptance_length is None


def test_what_is_not_told_stays_unknown() -> None:
    nothing = Counters()
    assert (
        nothing.acceptance_rate
        is nothing.mean_acceptance_length
        is nothing.length_with_draft
        is nothing.forwards
        is None
    )
    assert nothing.by_position == []
    assert total([]) == nothing and total([Counters(emitted=5)]) == nothing
    assert from_timings(None, 5) == Counters(emitted=4) and from_timings({}, None) == nothing
    assert from_timings({"predicted_n": 5}, 5).unsaid and not from_timings({"cache_n": 5}, 5).unsaid
    assert from_timings({"draft_n": "many", "draft_n_accepted": 1, "predicted_n": 2}, 2).drafted is None
    assert between(None, read(llama([])), 4)[0] == between(read(llama([])), None, 4)[0] == Counters(emitted=3)


def test_an_answer_of_which_nothing_is_known_is_in_no_sum() -> None:
    told = Counters(drafted=4, accepted=2, drafts=1, emitted=6, per_position=(1, 1))
    assert total([told, Counters(emitted=100)]) == told
    plain = from_timings({"predicted_n": 10}, 10)
    assert total([told, plain]) == Counters(4, 2, 1, 15, (1, 1))
    assert total([told, Counters(drafted=1, accepted=0, emitted=3)]).drafts is None, "one answer's drafts are missing"


def test_a_restart_or_somebody_else_is_noticed() -> None:
    steps = [(4, 2), (4, 4)]
    big, small = read(llama([*steps, *steps])), read(llama(steps))
    assert between(big, small, 9) == (Counters(emitted=8), True)
    found, alone = between(read(llama([])), small, 4)
    assert not alone and found.drafted == 8
    said = from_timings({"draft_n": 3, "draft_n_accepted": 1, "predicted_n": 4}, 4)
    assert combine(said, found, alone) == (said, False)
    assert combine(said, found, True) == (said, False), "the answer's own counts are other ones"
    silent = from_timings({"predicted_n": 4}, 4)
    assert combine(silent, found, True) == (silent, False), "it drafted nothing for this answer"


def test_gauges_are_no_counters() -> None:
    found = read(SGLANG)
    assert found is not None and found.engine == "SGLang"
    assert found.gauges == {"spec_accept_length": 2.5, "spec_accept_rate": 0.75}
    assert between(found, found, 4) == (Counters(emitted=3), True)


@pytest.mark.parametrize("text", ["<html><body>no</body></html>\n", '{"error": "no"}\n', 'a{b="c\n', "vllm:x one\n"])
def test_what_is_no_metrics_text(text: str) -> None:
    assert read(text) is None


def test_metrics_of_something_else_hold_nothing() -> None:
    assert read("process_cpu_seconds_total 12.5\n# EOF\n") == read("") and read("") is not None


@pytest.mark.parametrize("value", [None, "3", True, -1, math.nan, math.inf, [3]])
def test_what_is_no_count(value: object) -> None:
    assert count(value) is None
    assert count(3.0) == 3 and count(0) == 0
