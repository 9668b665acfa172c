"""What an advice says: true to the verdicts, in both languages, whatever is unknown."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advice_sample import DRAFT, advice
from slipstream.advise import kinds, wording
from slipstream.advise.advice import ALL, Advice, Decision, Speed, Verdict
from slipstream.advise.interval import ENOUGH
from slipstream.advise.wording import LANGUAGES, Words, headline, reason, summary
from slipstream.errors import UnknownName


def verdict(decision: Decision = "on", speedup: float = 1.71, **changes: Any) -> Verdict:
    speed = {"interval": (1.59, 1.83), "acceptance_rate": 0.72, "break_even": 0.36} | changes.pop("speed", {})
    values: dict[str, Any] = {"kind": "new code", "draft": DRAFT, "measured": True, "prompts": 6} | changes
    return Verdict(decision=decision, speed=Speed(speedup=speedup, **speed), **values)


def verdicts(*decided: tuple[str, Decision], **changes: Any) -> list[Verdict]:
    return [verdict(decision, kind=kind, **changes) for kind, decision in decided]


def with_verdicts(found: list[Verdict], **changes: Any) -> Advice:
    overall = changes.pop("overall", verdict(found[0].decision if found else "too few prompts", kind=ALL))
    return advice(verdicts=found, overall=overall, **changes)


# -- the table of words ------------------------------------------------------------------------------------------------


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_all_words_are_in_both_languages_and_take_the_same_values() -> None:
    for section, entries in wording.table().items():
        for key, said in entries.items():
            assert set(said) == set(LANGUAGES), f"{section}.{key}"
            assert fields(said["en"]) == fields(said["zh"]), f"{section}.{key}"


def test_every_kind_and_every_rule_of_ours_has_a_name_in_chinese() -> None:
    words = Words("zh")
    for kind in kinds.KINDS:
        assert words.kind(kind).isascii() is False
    for _, why in kinds.table():
        assert words.rule(why) != why


def test_names_of_the_user_s_own_stay_as_they_are() -> None:
    for lang in LANGUAGES:
        assert Words(lang).kind("my {own} kind") == "my {own} kind"
        assert "my {own} kind" in reason(verdict(kind="my {own} kind"), lang)
        assert Words(lang).rule("because") == Words(lang).origin("because") == "because"


def test_unknown_languages_are_refused_by_name() -> None:
    for call in (Words, lambda lang: reason(verdict(), lang), lambda lang: summary(advice(), lang)):
        with pytest.raises(UnknownName, match="unknown language: fr"):
            call("fr")


def test_lists_and_numbers() -> None:
    en, zh = Words("en"), Words("zh")
    assert en.listed(["a"]) == "a" and en.listed(["a", "b"]) == "a and b" and en.listed("abc") == "a, b and c"
    assert zh.listed("abc") == "a、b和c"
    assert (en.percent(0.314), en.percent(None), en.percent(float("nan"))) == ("31 %", "–", "–")
    assert (en.times(1.706), en.times(None), en.times(float("inf"))) == ("1.71×", "–", "–")
    assert (en.seconds(0.0413), en.seconds(0.61), en.seconds(None)) == ("41.3 ms", "0.61 s", "–")
    assert en.range((1.588, 1.81)) == "1.59 to 1.81" and zh.range((1.588, 1.81)) == "1.59 到 1.81"
    assert en.sentence("it is so") == "It is so." and zh.sentence("如此") == "如此。"


# -- reasons -----------------------------------------------------------------------------------------------------------


def test_a_reason_says_what_is_accepted_what_it_takes_and_what_follows() -> None:
    assert reason(verdict(), "en") == (
        "your new code prompts accept 72 % of the guesses; on this machine it takes 36 % to break even, "
        "so it runs 1.71 times as fast (1.59 to 1.83)"
    )
    assert reason(verdict(), "zh") == (
        "你的新写代码类提示词接受了 72 % 的猜测；在这台机器上要达到 36 % 才能保本，"
        "所以速度是普通解码的 1.71 倍（1.59 到 1.83）"
    )


def test_a_reason_to_leave_it_off() -> None:
    slow = verdict("off", 0.93, kind="chat", speed={"interval": (0.90, 0.96), "acceptance_rate": 0.31})
    assert reason(slow, "en").endswith("so it runs 0.93 times as fast (0.90 to 0.96), which is slower")
    assert reason(slow, "zh").endswith("所以速度是普通解码的 0.93 倍（0.90 到 0.96），也就是更慢")


@pytest.mark.parametrize(
    ("speedup", "interval", "tail"),
    [
        (1.02, (1.01, 1.04), "too little to be worth it"),
        (1.02, (0.97, 1.06), "too little to be worth it"),
        (1.20, (0.99, 1.51), "no certain gain"),
        (0.98, (0.93, 1.03), "no certain gain"),
    ],
)
def test_not_worth_it_says_whether_the_gain_is_small_or_uncertain(
    speedup: float, interval: tuple[float, float], tail: str
) -> None:
    said = reason(verdict("not worth it", speedup, speed={"interval": interval}), "en")
    assert tail in said and f"{interval[0]:.2f} to {interval[1]:.2f}" in said


@pytest.mark.parametrize(("accepted", "speedup", "word"), [(0.31, 1.1, "yet"), (0.5, 0.9, "yet"), (0.5, 1.1, "so")])
def test_what_does_not_follow_is_not_said_to_follow(accepted: float, speedup: float, word: str) -> None:
    said = reason(verdict("on", speedup, speed={"acceptance_rate": accepted}), "en")
    assert f", {word} it runs" in said


def test_what_is_unknown_is_left_out() -> None:
    nothing = {"interval": None, "acceptance_rate": None, "break_even": None}
    assert reason(verdict(speed=nothing), "en") == "it runs 1.71 times as fast"
    assert reason(verdict(speed=nothing | {"break_even": 0.36}), "en") == (
        "on this machine it takes 36 % to break even; it runs 1.71 times as fast"
    )
    assert reason(verdict(speed=nothing), "zh") == "速度是普通解码的 1.71 倍"


def test_predictions_say_so() -> None:
    said = verdict(measured=False)
    assert "so it is predicted (not measured) to run 1.71 times as fast" in reason(said, "en")
    assert "预计（并未实测）" in reason(said, "zh")
    assert "predicted" not in reason(verdict(), "en")


def test_too_few_prompts_says_how_many_it_takes() -> None:
    few = verdict("too few prompts", prompts=1, kind="summary")
    assert reason(few, "en") == f"one summary prompt does not make a verdict; give {ENOUGH} or more"
    two = verdict("too few prompts", prompts=2, kind="summary")
    assert reason(two, "en") == f"2 summary prompts do not make a verdict; give {ENOUGH} or more"
    assert f"{ENOUGH} 条或更多" in reason(two, "zh")


def test_an_interval_that_is_too_wide_is_told() -> None:
    wide = verdict("too few prompts", 1.2, prompts=5, kind="summary", speed={"interval": (0.81, 1.92)})
    assert reason(wide, "en") == (
        "5 summary prompts are too few to tell: it may run 0.81 to 1.92 times as fast; "
        "give it more prompts or more runs"
    )
    assert "0.81 到 1.92" in reason(wide, "zh")
    assert "40 prompts in all are too few" in reason(wide.model_copy(update={"kind": ALL, "prompts": 40}), "en")
    cut = verdict("too few prompts", prompts=5, kind="summary", speed={"interval": None})  # the run was stopped
    assert reason(cut, "en").startswith("of 5 summary prompts too few were measured")


def test_the_reason_for_all_work_and_for_plain_decoding() -> None:
    assert reason(verdict(kind=ALL), "en").startswith("your prompts, all kinds together, accept 72 %")
    plain = verdict("off", 1.0, draft="none")
    assert "plain decoding is the choice" in reason(plain, "en") and "1.00" not in reason(plain, "en")


number = st.none() | st.floats(0, 1)


@given(
    decision=st.sampled_from(["on", "not worth it", "off", "too few prompts"]),
    speedup=st.floats(0.01, 50),
    interval=st.none() | st.tuples(st.floats(0.01, 1), st.floats(1, 50)),
    accepted=number,
    needed=number,
    measured=st.booleans(),
    prompts=st.integers(0, 9),
    kind=st.sampled_from([ALL, "chat", "其他", "{x}"]),
    draft=st.sampled_from(["none", "suffix"]),
    lang=st.sampled_from(LANGUAGES),
)
def test_every_verdict_has_a_reason(
    decision: Decision, speedup: float, interval: tuple[float, float] | None, accepted: float | None,
    needed: float | None, measured: bool, prompts: int, kind: str, draft: str, lang: str,
) -> None:  # fmt: skip
    speed = {"interval": interval, "acceptance_rate": accepted, "break_even": needed}
    said = reason(
        verdict(decision, speedup, speed=speed, measured=measured, prompts=prompts, kind=kind, draft=draft), lang
    )
    assert said and "None" not in said and "{x}" not in said.replace(kind, "")
    claims = decision != "too few prompts" and draft != "none"
    if claims:
        assert f"{speedup:.2f}" in said
        assert ("predicted" in said or "预计" in said) is not measured


# -- summaries ---------------------------------------------------------------------------------------------------------


def test_the_summary_of_the_sample() -> None:
    assert summary(advice(), "en") == (
        f"Turn it on for new code, code editing, structured and translation with {DRAFT}. "
        "Leave it off for creative, where it is slower; it is not worth it for chat; "
        "too few prompts to tell for summary."
    )
    said = summary(advice(), "zh")
    assert said.startswith(f"对新写代码、修改代码、结构化输出和翻译（用 {DRAFT}）开启。")
    assert said.endswith("创作请关闭（会变慢）；闲聊不值得开启；摘要的提示词太少，无法判断。")


def test_the_summary_names_each_way_to_draft_with_its_kinds() -> None:
    found = [verdict(kind="chat", draft="suffix"), verdict(kind="maths"), verdict("off", 0.9, kind="creative")]
    assert summary(with_verdicts(found), "en").startswith(f"Turn it on for chat with suffix; maths with {DRAFT}.")


def test_on_everywhere_is_said_only_where_it_is() -> None:
    everywhere = verdicts(("chat", "on"), ("maths", "on"))
    assert summary(with_verdicts(everywhere), "en") == (f"Turn it on: it pays on all your kinds of work, with {DRAFT}.")
    assert "all your kinds" not in summary(with_verdicts([*everywhere, verdict("off", 0.9, kind="creative")]), "en")


def test_nothing_certain_means_off() -> None:
    found = verdicts(("chat", "off"), ("maths", "not worth it"), ("summary", "too few prompts"))
    said = summary(with_verdicts(found), "en")
    assert said == (
        "Leave it off: on none of your kinds of work is a gain certain. Too few prompts to tell for summary."
    )


def test_too_few_everywhere_and_none_at_all() -> None:
    few = with_verdicts(verdicts(("chat", "too few prompts"), ("maths", "too few prompts")))
    assert summary(few, "en") == f"Too few prompts to tell: give {ENOUGH} or more of each kind."
    assert summary(with_verdicts([]), "en") == "Stopped before anything could be said."


def test_all_work_together_may_gain_where_no_kind_is_certain() -> None:
    found = verdicts(("chat", "too few prompts"), ("creative", "off"))
    said = summary(with_verdicts(found, overall=verdict(kind=ALL)), "en")
    assert said.startswith(f"Turn it on with {DRAFT}: all your work together gains, though no single kind is certain")
    assert "Leave it off for creative" in said


def test_predictions_and_changed_prices_are_said_first() -> None:
    settings = advice().settings
    found = verdicts(("chat", "on"), ("maths", "off"), measured=False)
    overall = verdict(kind=ALL, measured=False)
    predicted = with_verdicts(found, overall=overall)
    changed = with_verdicts(found, overall=overall, settings=settings.model_copy(update={"what_if": ["users=8"]}))
    assert summary(predicted, "en").startswith("Predicted, not measured: turn it on for chat")
    assert summary(changed, "en").startswith("Predicted under changed prices, not measured: turn it on for chat")
    assert "并非实测" in summary(predicted, "zh") and "改动价格" in summary(changed, "zh")


def test_a_single_prediction_among_measurements_is_marked() -> None:
    found = [verdict(kind="chat"), verdict(kind="maths", measured=False)]
    assert "chat and maths (predicted) with" in summary(with_verdicts(found), "en")


@pytest.mark.parametrize(
    ("overall", "kinds_", "chosen", "said"),
    [
        ("on", ("on", "on"), DRAFT, "Turn drafting on"),
        ("on", ("on", "off"), DRAFT, "Turn drafting on for some of your work"),
        ("off", ("on", "off"), "none", "Turn drafting on for some of your work"),
        ("off", ("off", "off"), "none", "Leave drafting off"),
        ("not worth it", ("off", "not worth it"), "none", "Drafting is not worth it here"),
        ("not worth it", ("off", "not worth it"), "suffix", "No certain gain: only what costs nothing may stay on"),
        ("too few prompts", ("too few prompts",) * 2, "none", "Too few prompts to tell"),
    ],
)
def test_headlines(overall: Decision, kinds_: tuple[Decision, Decision], chosen: str, said: str) -> None:
    found = [verdict(decision, kind=kind) for kind, decision in zip(("chat", "maths"), kinds_, strict=True)]
    assert headline(with_verdicts(found, overall=verdict(overall, kind=ALL), chosen=chosen), "en") == said
