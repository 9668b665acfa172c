"""`slipstream matrix`: which precision of the target, with which drafts, and at what price in text and memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from slipstream.cli.common import (
    Downloads,
    Stoppable,
    check_writable,
    console,
    emit_json,
    say,
    warn_if_busy,
    write_whole,
)
from slipstream.cli.options import DRAFT_HELP, MODEL_HELP, Json, MaxTokens
from slipstream.cli.show import percent
from slipstream.cli.workload import SOURCE
from slipstream.drafting import DEFAULT
from slipstream.errors import DiskShortage, InputError, ModelFileError, UnknownName

if TYPE_CHECKING:
    from slipstream.advise.matrix import Matrix
    from slipstream.advise.matrix_rows import Row
    from slipstream.advise.measure import Work
    from slipstream.advise.variants import Variant, Way
    from slipstream.models.gguf import GGUFHeader

EPILOG = (
    "Example: slipstream matrix -m model-f16.gguf -m model-q4_k_m.gguf --draft suffix --draft small.gguf\n\n"
    "Example: slipstream matrix -m qwen2.5-coder-1.5b --requant Q4_0,Q8_0 --draft qwen2.5-coder-0.5b "
    "--requant-draft Q4_0"
)


def command(
    model: Annotated[list[str], typer.Option("-m", "--model", help=MODEL_HELP + " May be repeated.")],
    requant: Annotated[
        str, typer.Option("--requant", metavar="TYPES", help="Make these of the largest target too, such as Q4_0,Q8_0.")
    ] = "",
    draft: Annotated[
        list[str] | None,
        typer.Option("--draft", help=DRAFT_HELP + " May be repeated.", show_default=DEFAULT),
    ] = None,
    requant_draft: Annotated[
        str, typer.Option("--requant-draft", metavar="TYPES", help="Make these of each draft model too.")
    ] = "",
    workload: Annotated[str, typer.Option("--workload", help=SOURCE)] = "builtin",
    per_kind: Annotated[int, typer.Option("--per-kind", metavar="N", help="Prompts of each kind; 0: all.")] = 1,
    max_tokens: MaxTokens = 64,
    threads: Annotated[int, typer.Option("--threads", metavar="N", help="0: one a core.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the JSON result to this file too.")] = None,
    as_json: Json = False,
) -> int:
    """Compare files of the same model as targets, each with every way to draft: speed, acceptance, memory, and text.

    The draft model's precision changes only the time. The target's changes the text: how often the greedy token stays
    the one of the largest file, and how far the probabilities move (KL divergence, nats per token). Speeds without
    drafts are measured, with drafts predicted. Files made here are removed in the end; Ctrl-C shows what is known.
    """
    from slipstream.advise import variants
    from slipstream.advise.workload import load

    if per_kind < 0 or max_tokens < 2:
        raise InputError("--per-kind must be 0 or more and --max-tokens 2 or more", "leave them out for the defaults")
    check_writable(out)
    kinds, draft_kinds = variants.types(requant), variants.types(requant_draft)
    targets, ways = _given(model, draft or [DEFAULT], bool(draft_kinds))
    loaded = load(workload)
    for where, why in loaded.bad:
        say(f"warning: {Path(workload).name}, {where} is left out: {why}")
    works = (loaded.cut(per_kind) if per_kind else loaded).works
    warn_if_busy()
    with Stoppable() as stopped:
        result, found = _measure(targets, ways, kinds, draft_kinds, works, max_tokens, threads, stopped)
    if stopped.hit:
        say("stopped by Ctrl-C: this is what was complete")
    _show(found, result["skipped"], result["notes"])
    result |= {"workload": Path(workload).name, "max_tokens": max_tokens, "interrupted": stopped.hit}
    result["provenance"] = _provenance([*targets, *(w.model for w in ways if w.model)], threads)
    if out is not None:
        write_whole(out, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    if as_json:
        emit_json(result)
    return 130 if stopped.hit else 0


def _measure(
    targets: Sequence[Variant],
    ways: Sequence[Way],
    kinds: Sequence[str],
    draft_kinds: Sequence[str],
    works: Sequence[Work],
    max_tokens: int,
    threads: int,
    stopped: Stoppable,
) -> tuple[dict[str, Any], list[Row]]:
    """Make the files that are missing and measure all; the result as JSON holds it, and its rows."""
    from slipstream.advise import divergence, variants
    from slipstream.advise.matrix import Matrix
    from slipstream.advise.matrix_rows import rows
    from slipstream.hub import tuned

    reference = variants.reference_of(targets)
    models = list({w.model.label: w.model for w in ways if w.model}.values())
    needed = variants.space(reference.header, kinds) + sum(variants.space(m.header, draft_kinds) for m in models)
    needed += divergence.space(reference.header.n_vocab, len(works) * max_tokens)
    matrix, found = None, []
    try:
        with tuned.workshop(needed) as folder:
            every = [*targets, *_make([reference], kinds, folder, True, threads, stopped)]
            all_ways = [*ways, *_as_made(ways, _make(models, draft_kinds, folder, False, threads, stopped))]
            if not stopped.hit:
                matrix = Matrix(every, all_ways, folder, threads, stopped, say)
                matrix.run(works, max_tokens)
                found = rows(matrix)
    except DiskShortage as e:
        e.hint += "; fewer prompts, or a smaller --max-tokens, take less"
        raise
    return _result(matrix, found, every, all_ways, reference), found


def _given(models: Sequence[str], drafts: Sequence[str], remake: bool) -> tuple[list[Variant], list[Way]]:
    """Raises InputError and UnknownName for what is not there or makes no sense."""
    from slipstream.advise.variants import Variant, Way, given
    from slipstream.drafting import Drafting

    with Downloads() as progress:
        targets = given([_header(m, progress) for m in models])
        ways: dict[str, Way] = {}
        files: dict[str, Path] = {}  # by label
        for text in drafts:
            drafting = Drafting.of(text)
            small = None
            if drafting.model:
                head = _header(drafting.model, progress, drafts=True)
                label = Path(drafting.model).name if Path(drafting.model).exists() else drafting.model
                if files.setdefault(label, head.path) != head.path:  # files of one name in two folders
                    label = drafting.model
                small = Variant(label, head)
            if drafting.any:  # plain decoding is compared in any case
                label = ",".join([*drafting.names, *([small.label] if small else [])])
                ways[label] = Way(label, drafting.names, small)
    if remake and not any(way.model for way in ways.values()):
        raise InputError("there is no draft model to requantise", "name one with --draft, or leave out --requant-draft")
    return targets, list(ways.values())


def _header(ref: str, progress: Downloads, drafts: bool = False) -> GGUFHeader:
    from slipstream import drafters
    from slipstream.hub import resolve
    from slipstream.models.gguf import read_header

    try:
        return read_header(resolve(ref, progress=progress))
    except UnknownName as e:
        if drafts:
            e.hint += f" (drafters without a model: {', '.join(drafters.names())}, none)"
        raise


def _make(
    sources: Sequence[Variant], kinds: Sequence[str], folder: Path, target: bool, threads: int, stopped: Stoppable
) -> list[Variant]:
    """Requantised files; one that cannot be made is no reason to lose the others."""
    from slipstream.advise.variants import make

    found: list[Variant] = []
    for source in sources:
        for kind in kinds:
            if stopped.hit:
                return found
            say(f"making {source.header.path.name} {kind.upper()}")
            try:
                found.append(make(source, kind, folder, target, threads))
            except ModelFileError as e:
                say(f"warning: left out: {e.message}")
    return found


def _as_made(ways: Sequence[Way], made: Sequence[Variant]) -> list[Way]:
    """Each way with a draft model again, with what was made of that model."""
    from slipstream.advise.variants import Way

    return [
        Way(",".join([*way.names, variant.label]), way.names, variant)
        for way in ways
        for variant in made
        if way.model and variant.source == way.model.label
    ]


def _show(found: Sequence[Row], skipped: Sequence[dict[str, str]], notes: Sequence[str]) -> None:
    from slipstream.advise.matrix_rows import nats, share
    from slipstream.models.memory import human

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("target")
    table.add_column("draft")
    for title in ("tok/s", "of the\nreference", "of\nplain", "accepted", "memory", "same\ntokens", "nats a\ntoken"):
        table.add_column(title, justify="right")
    for r in found:
        mark = "" if r.measured else "~"
        text = (share(r.text.agreement), nats(r.text.kl)) if r.text else ("-", "-")
        speeds = (f"{mark}{r.tps:.1f}", f"{mark}{r.over_reference:.2f}x", f"{mark}{r.speedup:.2f}x")
        table.add_row(r.target, r.draft, *speeds, percent(r.acceptance_rate), human(r.memory), *text)
    if found:
        console().print(table)
        print("~ predicted by rehearsing the reference's answers; the others are measured")
    for r in found:
        print(r.verdict)
    for s in skipped:
        print(f"{s['target']} with {s['draft']}: left out: {s['reason']}")
    for note in notes:
        print(f"note: {note}")


def _result(
    matrix: Matrix | None, found: Sequence[Row], targets: Sequence[Variant], ways: Sequence[Way], reference: Variant
) -> dict[str, Any]:
    skipped = matrix.skipped.items() if matrix else ()
    models = {w.model.label: w.model for w in ways if w.model}
    return {
        "reference": reference.label,
        "targets": [t.as_dict() for t in targets],
        "drafts": [m.as_dict() for m in models.values()],
        "rows": [r.as_dict() for r in found],
        "skipped": [{"target": t, "draft": w, "reason": why} for (t, w), why in skipped],
        "notes": [t.note for t in targets if t.note],
        "prompts": len(matrix.scripts) if matrix else 0,
    }


def _provenance(files: Sequence[Variant], threads: int) -> dict[str, Any]:
    """Of the files that were given; those made here are gone."""
    from slipstream.advise.provenance import provenance

    return provenance({v.label: v.header.path for v in files if not v.made_of}, threads)
