"""`slipstream advise`: should drafting be on for your work, on this machine, and with what?"""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from slipstream.cli.advise_options import QUICK, Amount, Outputs
from slipstream.cli.common import (
    Downloads,
    Stoppable,
    console,
    emit_json,
    say,
    warn_if_busy,
)
from slipstream.cli.options import MODEL_HELP, Json, grouped
from slipstream.cli.workload import SOURCE
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.advise.advice import Advice
    from slipstream.advise.advisor import Advisor, Settings
    from slipstream.advise.candidates import Candidate
    from slipstream.advise.whatif import Change

EPILOG = (
    "Example: slipstream advise -m qwen2.5-coder-1.5b --workload prompts.jsonl --html report.html --plan plan.toml\n\n"
    'Example: slipstream advise -m T.gguf --candidates "suffix;suffix,D.gguf" --quick\n\n'
    'Example: slipstream advise -m qwen2.5-coder-1.5b --resume --what-if users=8 --what-if "T(n)=40+2*n"'
)
WAYS = 'What to compare: --draft values separated by ";", or auto.'
WHAT_IF = "Predict with other prices, from what was kept: T(n)=EXPR, prices=FILE, users=8, bandwidth=0.5, compute=2."


@grouped
def command(
    model: Annotated[str, typer.Option("-m", "--model", help=MODEL_HELP)],
    workload: Annotated[str, typer.Option("--workload", help=SOURCE)] = "builtin",
    candidates: Annotated[str, typer.Option("--candidates", help=WAYS)] = "auto",
    amount: Amount = ...,  # type: ignore[assignment]
    resume: Annotated[bool, typer.Option("--resume", help="Go on from what earlier runs found out.")] = False,
    what_if: Annotated[list[str] | None, typer.Option("--what-if", help=WHAT_IF)] = None,
    outputs: Outputs = ...,  # type: ignore[assignment]
    as_json: Json = False,
) -> int:
    """Say whether drafting pays for your work, on this machine, and with what; with evidence.

    Measured once, asked many times: the target answers your prompts; each way to draft is rehearsed over the answers
    with the prices of this machine; the best are run for real, in turn with plain decoding.

    Exit code 0: on; 1: leave draft models off. Ctrl-C shows what is known so far, and --resume goes on from there.
    """
    from slipstream.advise import whatif
    from slipstream.advise.candidates import candidates as ways_for

    outputs.check()
    settings = amount.settings()
    changes = whatif.settled([whatif.parse(text) for text in what_if or ()])
    ways = ways_for(model, candidates, bool(settings.corpus))
    if not ways:
        raise InputError("there is nothing to compare", f"{WAYS} none alone is plain decoding")
    whatif.check(changes, [way.model for way in ways if way.model])
    advisor = _advisor(model, workload, amount.size.per_kind, settings, ways, resume or bool(changes))
    with Stoppable() as stopped:
        advisor.stopped = stopped
        advice = _ask(advisor, changes, what_if or [], workload, outputs.redact)
    if advice is None:
        say("stopped by Ctrl-C before anything was known; --resume goes on")
        if as_json:
            emit_json({"interrupted": True})
        return 130
    shown = anonymous(advice)
    show(shown, outputs.lang)
    outputs.write(shown, advice)
    if advice.interrupted:
        say("stopped by Ctrl-C: this is what is known so far; --resume goes on")
    if as_json:
        emit_json(shown.model_dump(mode="json"))
    return _code(advice)


def _code(advice: Advice) -> int:
    wrong = [f"{cell.draft} on {cell.kind}" for cell in advice.cells if cell.texts == "mismatch"]
    if wrong:
        say(f"WRONG TEXT, please report this with `slipstream doctor --json`: {'; '.join(wrong)}")
    return 130 if advice.interrupted else 0 if advice.overall.decision == "on" and not wrong else 1


def _advisor(
    model: str, workload: str, per_kind: int, settings: Settings, ways: list[Candidate], resume: bool
) -> Advisor:
    from slipstream.advise.advisor import Advisor
    from slipstream.advise.evidence import Evidence, place
    from slipstream.advise.progress import Progress
    from slipstream.advise.workload import load
    from slipstream.hub import resolve
    from slipstream.models.llamacpp import library
    from slipstream.pricing import key

    with Downloads() as progress:
        file = resolve(model, progress=progress)
        for name in dict.fromkeys(way.model for way in ways if way.model):
            resolve(name, progress=progress)
    loaded = load(workload)
    for where, reason in loaded.bad:
        say(f"warning: {Path(workload).name}, {where} is left out: {reason}")
    warn_if_busy()
    path = place(key(file, build=library.build_id(), threads=settings.threads, code=_drafting_code()))
    evidence = Evidence.read(path)
    return Advisor(model, loaded.cut(per_kind), ways, settings, evidence, Progress(_line), anew=not resume)


def _drafting_code() -> str:
    """A digest of the code that decides what is drafted: runs of another one are not those of this one."""
    import hashlib

    from slipstream import core, drafters

    files = [file for part in (core, drafters) for file in sorted(Path(part.__path__[0]).glob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _line(text: str) -> None:
    """Where it is: in place on a terminal, else a line for each step."""
    if sys.stderr.isatty():
        print(f"\r\x1b[2K  {text}", end="", file=sys.stderr, flush=True)
    else:
        say(f"  {text}")


def _ask(advisor: Advisor, changes: Sequence[Change], what_if: list[str], workload: str, redact: bool) -> Advice | None:
    """All steps; what-if asks no more of the target than answers that are still missing. None: nothing is known yet."""
    from slipstream.advise import whatif
    from slipstream.advise.conclude import Prices, conclude
    from slipstream.advise.evidence import TARGET

    advisor.check()
    _require(advisor.usable, "no way to draft is left", [f"{d}: {why}" for d, why in advisor.skipped.items()])
    advisor.write()
    if not advisor.stopped():
        _require(advisor.items, "no prompt can be used", [f"{where}: {why}" for where, why in advisor.left_out])
    advisor.hear()
    curves = dict(advisor.evidence.curves)
    target = curves.pop(TARGET, None)
    if target is None:
        return None
    if changes:
        target, curves = whatif.apply(changes, target, curves)
    outcomes = advisor.predict(target, curves)
    if not any(outcomes.values()):
        return None
    if not changes and not advisor.stopped():
        advisor.run(advisor.best(outcomes))
    if sys.stderr.isatty():
        say()
    for draft, why in advisor.skipped.items():
        say(f"left out: {draft}: {why}")
    prices = Prices(target, curves, whatif.notes(changes))
    source = workload if workload == "builtin" else Path(workload).resolve().name
    return conclude(advisor, outcomes, prices, source, _again(advisor, source, what_if), redact)


def _require(found: Sequence[object], message: str, reasons: Sequence[str]) -> None:
    if not found:
        raise InputError(f"{message}: {reasons[0]}" if reasons else message, "`slipstream check` shows what fits")


def _again(advisor: Advisor, source: str, what_if: list[str]) -> str:
    """The command that does this again."""
    s = advisor.settings
    ways = [way.draft for way in advisor.ways]
    per_kind = max(Counter(work.kind for work in advisor.loaded.works).values())
    words: list[object] = ["slipstream", "advise", "-m", advisor.target, "--workload", source]
    words += ["--candidates", ";".join(ways)]
    words += ["--quick"] * (s.real == QUICK.real) + ["--per-kind", per_kind, "--max-tokens", s.max_tokens]
    words += ["--runs", s.runs, "--minutes", f"{s.budget_s / 60:g}", "--seed", s.seed]
    words += ["--temperature", s.temperature] * (s.temperature > 0) + ["--threads", s.threads] * (s.threads > 0)
    words += [word for path in s.corpus for word in ("--corpus", path)]
    words += [word for change in what_if for word in ("--what-if", change)]
    return shlex.join(map(str, words))


def anonymous(advice: Advice) -> Advice:
    """As it is passed on: files are named without the folders in which they lie on this machine."""
    refs = [advice.target.name, *advice.drafts, *(c.model for c in advice.candidates if c.model)]
    refs += [*advice.settings.corpus, *(change.partition("=")[2] for change in _changes(advice.reproduce))]
    text = advice.model_dump_json()
    for ref in sorted({ref for ref in refs if "/" in ref and not ref.startswith("hf:")}, key=len, reverse=True):
        text = text.replace(json.dumps(ref, ensure_ascii=False)[1:-1], Path(ref).name or Path(ref).resolve().name)
    return type(advice).model_validate_json(text)


def _changes(command: str) -> list[str]:
    words = shlex.split(command)
    return [after for word, after in pairwise(words) if word == "--what-if"]


def show(advice: Advice, lang: str) -> None:
    """Verdicts as a table, and the summary."""
    from slipstream.advise.wording import Words, reason, summary

    words = Words(lang)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("kind", "decision", "with_draft", "speedup", "why"):
        table.add_column(words(f"page.{title}"))
    for v in [*advice.verdicts, advice.overall]:
        spread = f" ({words.range(v.speed.interval)})" if v.speed.interval else ""
        said = words.times(v.speed.speedup) + spread
        table.add_row(words.kind(v.kind), words(f"decision.{v.decision}"), v.draft, said, reason(v, lang))
    console().print(table)
    print(summary(advice, lang))
