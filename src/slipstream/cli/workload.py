"""`slipstream workload`: what kinds of work a set of prompts holds, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from slipstream.cli.common import check_writable, console, emit_json, say, write_whole
from slipstream.cli.options import Json
from slipstream.errors import InputError

EPILOG = "Example: slipstream workload requests.jsonl --out mine.jsonl\n\nExample: slipstream workload src/"
SOURCE = 'JSON Lines of prompts, chats or logged requests; a folder of source files; or "builtin".'


def command(
    source: Annotated[str, typer.Argument(help=SOURCE)],
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the prompts with their kinds, as JSON Lines to edit and use.")
    ] = None,
    per_kind: Annotated[int, typer.Option("--per-kind", metavar="N", help="Take N prompts of each kind; 0: all.")] = 0,
    rules: Annotated[
        bool, typer.Option("--rules", help="Show the rules, in the order in which they are tried.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Show which kinds of work a workload holds, by which rules. A line's own "kind" overrides them.

    Nothing but counts is printed; prompts are written only to the file that --out names.
    """
    from slipstream.advise.kinds import table
    from slipstream.advise.workload import load

    if per_kind < 0:
        raise InputError(f"--per-kind is {per_kind}", "give 1 or more, or 0 for all")
    check_writable(out)
    loaded = load(source)
    loaded = loaded.cut(per_kind) if per_kind else loaded
    for where, reason in loaded.bad:
        say(f"warning: {where}: left out: {reason}")
    reasons = {(work.kind, work.why): 0 for work in loaded.works}
    for work in loaded.works:
        reasons[work.kind, work.why] += 1
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("prompts", "share", "kind", "because it"):
        shown.add_column(title, justify="right" if title in ("prompts", "share") else "left")
    for (kind, why), n in sorted(reasons.items(), key=lambda item: (-loaded.mix[item[0][0]], item[0][0], -item[1])):
        shown.add_row(str(n), f"{100 * n / len(loaded.works):.0f} %", kind, why)
    console().print(shown)
    if rules:
        print("rules, the first that fits decides:")
        for kind, why in table():
            print(f"  {kind}: {why}")
    if out is not None:
        write_whole(out, "".join(json.dumps(work.as_line(), ensure_ascii=False) + "\n" for work in loaded.works))
        say(f"{len(loaded.works)} prompts written to {out}")
    if as_json:
        found = [{"kind": kind, "why": why, "prompts": n} for (kind, why), n in reasons.items()]
        emit_json({"source": source, "prompts": len(loaded.works), "kinds": found, "bad": loaded.bad})
    return 0
