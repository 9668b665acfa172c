"""Everything an advice says to people, in English and Chinese; the words themselves are in data/wording.toml."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from slipstream.advise.advice import ALL, Advice, Verdict
from slipstream.advise.candidates import PLAIN
from slipstream.advise.interval import ENOUGH
from slipstream.advise.verdict import WORTH
from slipstream.errors import UnknownName
from slipstream.models.memory import human

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LANGUAGES = ("en", "zh")


@cache
def table() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Section -> key -> language -> words."""
    return tomllib.loads(files("slipstream.data").joinpath("wording.toml").read_text(encoding="utf-8"))


class Words:
    """One language. Called with "section.key" and the values that the words take. Raises UnknownName for a language
    that it does not speak, KeyError for words that nobody wrote."""

    def __init__(self, lang: str) -> None:
        if lang not in LANGUAGES:
            raise UnknownName("language", lang, LANGUAGES)
        self.lang = lang

    def __call__(self, key: str, /, **values: object) -> str:
        section, _, name = key.partition(".")
        return table()[section][name][self.lang].format(**values)

    def _name(self, section: str, name: str) -> str:
        """Translated where it is one of ours; names of the user's own stay as they are."""
        known = table()[section].get(name)
        return known[self.lang] if known else name

    def kind(self, name: str) -> str:
        return self._name("kind", name)

    def rule(self, why: str) -> str:
        return self._name("rule", why)

    def origin(self, name: str) -> str:
        return self._name("origin", name)

    def listed(self, names: Iterable[str]) -> str:
        """a, b and c"""
        *most, last = names
        return self("join.comma").join(most) + self("join.and") + last if most else last

    def sentence(self, clause: str) -> str:
        return clause[:1].upper() + clause[1:] + self("join.stop") if clause else ""

    def range(self, interval: tuple[float, float]) -> str:
        low, high = (f"{x:.2f}" for x in interval)
        return self("join.range", low=low, high=high)

    # -- numbers; None is a dash -------------------------------------------------------------------------------------

    @staticmethod
    def percent(share: float | None) -> str:
        return "–" if share is None or not math.isfinite(share) else f"{100 * share:.0f} %"

    @staticmethod
    def times(ratio: float | None) -> str:
        return "–" if ratio is None or not math.isfinite(ratio) else f"{ratio:.2f}×"

    @staticmethod
    def bytes(size: int | None) -> str:
        return "–" if size is None else human(size)

    @staticmethod
    def seconds(seconds: float | None) -> str:
        if seconds is None or not math.isfinite(seconds):
            return "–"
        return f"{1e3 * seconds:.1f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def reason(verdict: Verdict, lang: str) -> str:
    """Why, in one sentence without its full stop. Raises UnknownName for a language that is not spoken."""
    words = Words(lang)
    general = "_all" if verdict.kind == ALL else ""
    values: dict[str, Any] = {"n": verdict.prompts, "kind": words.kind(verdict.kind), "enough": ENOUGH}
    if verdict.decision == "too few prompts":
        return _too_few(words, verdict, general, values)
    if verdict.draft == PLAIN:
        return words(f"reason.plain{general}", **values)
    facts, link = _facts(words, verdict, words(f"reason.subject{general}", **values))
    joint = words("join.clause" if link else "join.semicolon") if facts else ""
    return facts + joint + link + _speed(words, verdict)


def _too_few(words: Words, verdict: Verdict, general: str, values: Mapping[str, Any]) -> str:
    """Under ENOUGH prompts nothing is known; with more the interval may still be too wide to say anything."""
    if verdict.prompts < ENOUGH:
        return words("reason.few_all" if general else f"reason.few{'_one' * (verdict.prompts == 1)}", **values)
    if verdict.speed.interval is None:
        return words(f"reason.unmeasured{general}", **values)
    return words(f"reason.unsure{general}", range=words.range(verdict.speed.interval), **values)


def _facts(words: Words, verdict: Verdict, subject: str) -> tuple[str, str]:
    """What is accepted and what it takes; and the word that leads from there to the speed."""
    accepted, needed = verdict.speed.acceptance_rate, verdict.speed.break_even
    said = "" if accepted is None else words("reason.accepts", subject=subject, share=words.percent(accepted))
    needs = "" if needed is None else words("reason.needs", share=words.percent(needed))
    facts = words("join.semicolon").join(part for part in (said, needs) if part)
    if accepted is None or needed is None:
        return facts, ""
    return facts, words("reason.so" if (accepted >= needed) == (verdict.speed.speedup >= 1) else "reason.yet")


def _speed(words: Words, verdict: Verdict) -> str:
    speed = verdict.speed
    said = words("reason.runs" if verdict.measured else "reason.predicted", times=f"{speed.speedup:.2f}")
    if speed.interval is not None:
        said = words("join.brackets", text=said, inside=words.range(speed.interval))
    if verdict.decision == "off" and speed.speedup < 1:
        return said + words("reason.slower")
    if verdict.decision == "not worth it":
        return said + words("reason.little" if 1 <= speed.speedup < WORTH else "reason.uncertain")
    return said


def headline(advice: Advice, lang: str) -> str:
    """The verdict in a few words."""
    words = Words(lang)
    on = [v for v in advice.verdicts if v.decision == "on"]
    if advice.overall.decision == "on":
        return words("headline.on" if len(on) in (0, len(advice.verdicts)) else "headline.some")
    if on:
        return words("headline.some")
    if advice.chosen != PLAIN and advice.overall.decision == "not worth it":
        return words("headline.free")
    names = {"not worth it": "no", "off": "off", "too few prompts": "few"}
    return words(f"headline.{names[advice.overall.decision]}")


def summary(advice: Advice, lang: str) -> str:
    """One or two sentences: where to turn it on and with what, where not. Claims no more than the verdicts do."""
    words = Words(lang)
    predicted = bool(advice.settings.what_if) or not (
        advice.overall.measured or any(v.measured for v in advice.verdicts)
    )
    lead = words("summary.what_if" if advice.settings.what_if else "summary.predicted") if predicted else ""
    first, rest = _on(words, advice, predicted), _elsewhere(words, advice)
    if predicted and words.lang == "en":  # goes on behind a colon
        said = lead + first + words("join.stop")
    else:
        said = lead + words.sentence(first)
    gap = " " if words.lang == "en" else ""
    return said + (gap + words.sentence(rest) if rest else "")


def _on(words: Words, advice: Advice, predicted: bool) -> str:
    on = [v for v in advice.verdicts if v.decision == "on"]
    if not on:
        return _nowhere(words, advice)
    groups: dict[str, list[Verdict]] = {}
    for v in on:
        groups.setdefault(v.draft, []).append(v)
    if len(on) == len(advice.verdicts) and len(groups) == 1 and (predicted or all(v.measured for v in on)):
        return words("summary.on_all", where=words("summary.with", draft=on[0].draft))
    where = [
        words("summary.group", kinds=words.listed(_kinds(words, group, predicted)), draft=draft)
        for draft, group in groups.items()
    ]
    return words("summary.on", where=words("join.semicolon").join(where))


def _nowhere(words: Words, advice: Advice) -> str:
    overall = advice.overall
    if overall.decision == "on" and overall.draft != PLAIN:
        return words("summary.on_overall", draft=overall.draft)
    if not advice.verdicts:
        return words("summary.nothing")
    if all(v.decision == "too few prompts" for v in advice.verdicts):
        return words("summary.few", enough=ENOUGH)
    return words("summary.none")


def _elsewhere(words: Words, advice: Advice) -> str:
    """The kinds that are not on. Where it stays off anyway, only those that nobody can tell about take another word."""
    by: dict[str, list[str]] = {"off": [], "not worth it": [], "too few prompts": []}
    for v in advice.verdicts:
        if v.decision in by:
            by[v.decision].append(words.kind(v.kind))
    if len(by["too few prompts"]) == len(advice.verdicts):
        return ""
    keys = {"off": "off", "not worth it": "no", "too few prompts": "unsure"}
    if advice.overall.decision != "on" and all(v.decision != "on" for v in advice.verdicts):
        keys = {"too few prompts": "unsure"}
    parts = [words(f"summary.{key}", kinds=words.listed(by[name])) for name, key in keys.items() if by[name]]
    return words("join.semicolon").join(parts)


def _kinds(words: Words, verdicts: Sequence[Verdict], predicted: bool) -> list[str]:
    """Those that were not measured say so, unless all of it is said to be predicted."""
    names = ((words.kind(v.kind), v.measured or predicted) for v in verdicts)
    return [name if sure else words("summary.kind_predicted", kind=name) for name, sure in names]
