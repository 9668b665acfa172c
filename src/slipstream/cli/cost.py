"""`slipstream cost`: what a forward of n tokens costs on this machine, and the hit rate that it takes to earn it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from slipstream.cli.common import Downloads, check_writable, console, emit_json, say, warn_if_busy, write_whole
from slipstream.cli.options import MODEL_HELP, Json

if TYPE_CHECKING:
    from slipstream.core.cost import Curve

EPILOG = "Example: slipstream cost -m smollm2-135m\n\nExample: slipstream cost -m model.gguf --context 2000 --fresh"
_BAR = 40  # characters


def command(
    model: Annotated[str, typer.Option("-m", "--model", help=MODEL_HELP)],
    context: Annotated[int, typer.Option("--context", metavar="N", help="Tokens of past to show prices for.")] = 200,
    threads: Annotated[int, typer.Option("--threads", metavar="N", help="0: one a core.")] = 0,
    kv_type: Annotated[str, typer.Option("--kv-type", help="Type of the cache: f16, q8_0, …")] = "f16",
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, even if there is a price list.")] = False,
    save: Annotated[Path | None, typer.Option("--save", help="Write the price list to this file too.")] = None,
    as_json: Json = False,
) -> int:
    """Print T(n): milliseconds of a forward that reads n tokens, measured once and kept.

    Break-even is the share of drafted tokens that must be accepted, each after the one before, for a chain of n - 1
    free guesses to be no slower than plain decoding. Where the curve is flat, guesses cost nothing; where it climbs as
    fast as n, hardly any hit rate pays.
    """
    import json

    from slipstream.errors import InputError

    if context < 0:
        raise InputError(f"the context is {context} tokens", "give 0 or more")
    check_writable(save)
    warn_if_busy()
    curve, name = _curve(model, threads, kv_type, fresh)
    rows = [_row(curve, n, context) for n in curve.sizes]
    print(f"{name}: milliseconds of a forward of n tokens after {context} tokens of context")
    _table(rows)
    value: dict[str, Any] = {"model": name, "context": context, "rows": rows, "curve": curve.as_dict()}
    if save is not None:
        write_whole(save, json.dumps(value, indent=2) + "\n")
        say(f"price list written to {save}")
    if as_json:
        emit_json(value)
    return 0


def _curve(ref: str, threads: int, kv_type: str, fresh: bool) -> tuple[Curve, str]:
    from slipstream.hub import resolve
    from slipstream.models import memory
    from slipstream.models.gguf import read_header
    from slipstream.models.llamacpp.model import LlamaOptions
    from slipstream.opening import Files, OpenOptions, context, curve_of, load_model, memory_plan

    with Downloads() as progress:
        path = resolve(ref, progress=progress)
    head = read_header(path)
    memory.require_fits(memory_plan(Files(head, None, None), OpenOptions(threads=threads, kv_type=kv_type))[0])
    options = LlamaOptions(n_ctx=context(head, 0), threads=threads, kv_type_k=kv_type, kv_type_v=kv_type)
    model = load_model(head, options)
    try:
        return curve_of(model, head, options, fresh), path.name
    finally:
        model.close()


def _row(curve: Curve, n: int, context: int) -> dict[str, Any]:
    """`ms` of a forward; `break_even` is None where no hit rate suffices."""
    from slipstream.core.cost import break_even

    seconds, one = curve.at(n, context), curve.at(1, context)
    return {"n": n, "ms": 1e3 * seconds, "times": seconds / one, "break_even": break_even(n, seconds / one)}


def _table(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("n", "ms", "of T(1)", "break-even"):
        table.add_column(title, justify="right")
    table.add_column("")
    longest = max(r["ms"] for r in rows)
    for r in rows:
        share = "-" if r["n"] == 1 else "never" if r["break_even"] is None else f"{100 * r['break_even']:.0f} %"
        bar = "█" * max(round(_BAR * r["ms"] / longest), 1)
        table.add_row(str(r["n"]), f"{r['ms']:.1f}", f"{r['times']:.2f}x", share, bar)
    console().print(table)
