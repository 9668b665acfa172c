"""What the report's templates show of an advice, worked out beforehand: templates lay out, and decide nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from slipstream.advise.advice import Advice, Cell
from slipstream.advise.candidates import PLAIN
from slipstream.advise.charts import by_speedup, draft_model, shown_draft
from slipstream.advise.wording import Words, headline, reason, summary

_MARKS = 6  # looks that parts of a sample may have
_LISTED = 20  # prompts that were left out


@dataclass(frozen=True)
class Fact:
    """`value` in large letters, `notes` below it."""

    name: str
    value: str
    notes: tuple[str, ...]
    code: bool = False


def view(advice: Advice, lang: str) -> dict[str, Any]:
    """The templates' variables. Raises UnknownName for a language that is not spoken."""
    words = Words(lang)
    return {
        "advice": advice,
        "words": words,
        "headline": headline(advice, lang),
        "summary": summary(advice, lang),
        "stance": _stance(advice),
        "predicted_only": not advice.overall.measured and not any(c.measured for c in advice.cells),
        "mismatches": [f"{words.kind(c.kind)}, {c.draft}" for c in advice.cells if c.texts == "mismatch"],
        "facts": _facts(words, advice),
        "rows": [(v, words.sentence(reason(v, lang))) for v in by_speedup(advice)],
        "one_draft": len({v.draft for v in advice.verdicts}) == 1,
        "shown_draft": shown_draft(advice),
        "by_draft": _by_draft(advice),
        "sample": _sample(words, advice),
        "left_out": advice.workload.left_out[:_LISTED],
        "left_more": max(len(advice.workload.left_out) - _LISTED, 0),
        "skipped": [c for c in advice.candidates if c.skipped],
        "models": {words("chart.target"): advice.target}
        | {f"{words('chart.draft_model')} {i}".removesuffix(" 1"): m for i, m in enumerate(advice.drafts.values(), 1)},
        "origin": _provenance(words, advice),
    }


def _stance(advice: Advice) -> str:
    """Whose colour the verdict has: on, off, or unsure."""
    if any(v.decision == "on" for v in (advice.overall, *advice.verdicts)):
        return "on"
    return "off" if advice.overall.decision == "off" else "unsure"


def _facts(words: Words, advice: Advice) -> list[Fact]:
    return [_speedup(words, advice), _way(words, advice), _memory(words, advice), _first(words, advice)]


def _speedup(words: Words, advice: Advice) -> Fact:
    overall, speed = advice.overall, advice.overall.speed
    notes = [words("page.speedup_measured" if overall.measured else "page.speedup_predicted")]
    if speed.interval is not None:
        notes.append(words("page.speedup_note", range=words.range(speed.interval)))
    if speed.plain_tps is not None and speed.tps is not None:
        notes.append(words("page.tps", plain=f"{speed.plain_tps:.1f}", tps=f"{speed.tps:.1f}"))
    if overall.draft not in (PLAIN, advice.chosen):
        notes.append(words("page.speedup_with", draft=overall.draft))
    return Fact(words("page.speedup"), words.times(speed.speedup), tuple(notes))


def _way(words: Words, advice: Advice) -> Fact:
    if advice.chosen == PLAIN:
        return Fact(words("page.draft"), words("page.draft_none"), ())
    model = draft_model(advice)
    note = words("page.draft_model", model=model.name) if model else words("page.draft_models")
    return Fact(words("page.draft"), advice.chosen, (note,), code=True)


def _memory(words: Words, advice: Advice) -> Fact:
    """What drafting takes beside the target."""
    own = advice.target.memory
    target = words.bytes((own.measured or own.total) if own else None)
    model = draft_model(advice)
    if model is None:
        notes = [words("page.memory_none")] if advice.chosen != PLAIN else []
        notes += [words("page.memory_target", target=target)] if own else []
        return Fact(words("page.memory"), words("page.memory_zero"), tuple(notes))
    if model.memory is None:
        return Fact(words("page.memory"), words("page.unknown"), ())
    key = "page.memory_counted" if model.memory.measured is None else "page.memory_measured"
    value = words.bytes(model.memory.measured or model.memory.total)
    return Fact(words("page.memory"), value, (words(key, target=target),))


def _first(words: Words, advice: Advice) -> Fact:
    speed = advice.overall.speed
    if speed.first_token_s is None:
        return Fact(words("page.first"), words("page.unknown"), ())
    notes = () if speed.plain_first_token_s is None else (
        words("page.first_plain", plain=words.seconds(speed.plain_first_token_s)),
    )  # fmt: skip
    return Fact(words("page.first"), words.seconds(speed.first_token_s), notes)


def _by_draft(advice: Advice) -> dict[str, list[tuple[Cell, float | None]]]:
    """Cells by way to draft, each with |predicted / measured - 1|."""
    found: dict[str, list[tuple[Cell, float | None]]] = {}
    for cell in advice.cells:
        real = cell.measured.speedup if cell.measured else 0.0
        found.setdefault(cell.draft, []).append((cell, abs(cell.predicted.speedup / real - 1) if real else None))
    return found


def _sample(words: Words, advice: Advice) -> dict[str, Any] | None:
    """Parts of the answer with the number of their look (0: the target's own), and what the looks mean."""
    if advice.sample is None or not advice.sample.segments:
        return None
    origins = dict.fromkeys(s.origin for s in advice.sample.segments if s.origin != "target")
    looks = {"target": 0} | {origin: 1 + i % _MARKS for i, origin in enumerate(origins)}
    length = sum(len(s.text) for s in advice.sample.segments)
    guessed = sum(len(s.text) for s in advice.sample.segments if s.origin != "target")
    note = words(
        "page.sample_note", kind=words.kind(advice.sample.kind), draft=advice.sample.draft,
        share=words.percent(guessed / length if length else 0.0),
    )  # fmt: skip
    return {
        "note": note,
        "parts": [(s.text, looks[s.origin]) for s in advice.sample.segments],
        "legend": [(words.origin(origin), look) for origin, look in looks.items()],
    }


def _provenance(words: Words, advice: Advice) -> list[tuple[str, str]]:
    """Date, CPU, settings and versions, as far as the advice holds them."""
    told, s = advice.provenance, advice.settings
    machine = _mapping(told.get("machine"))
    cpu = str(machine.get("cpu") or advice.machine)
    if cores := machine.get("cores"):
        cpu = words("page.cores", cpu=cpu, n=cores)
    threads = words("page.threads", n=s.threads) if s.threads else words("page.threads_all")
    settings = words(
        "page.settings_value", tokens=s.max_tokens, runs=s.runs, seed=s.seed, temperature=f"{s.temperature:g}",
        threads=threads,
    )  # fmt: skip
    versions = words("join.comma").join(f"{name} {number}" for name, number in _mapping(told.get("versions")).items())
    pairs = {"date": _date(told.get("date")), "cpu": cpu, "settings": settings, "versions": versions}
    return [(words(f"page.{name}"), value) for name, value in pairs.items() if value]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _date(value: object) -> str:
    try:
        return datetime.fromisoformat(str(value)).strftime("%Y-%m-%d %H:%M %Z").strip()
    except ValueError:
        return str(value or "")
