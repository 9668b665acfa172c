"""`slipstream check`: would it fit and would the pair work, from the files' headers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from slipstream.cli.common import Downloads, console, emit_json, say
from slipstream.cli.options import DRAFT_HELP, MODEL_HELP, Json

if TYPE_CHECKING:
    from slipstream.models.gguf import GGUFHeader
    from slipstream.models.memory import MemoryPlan

EPILOG = "Example: slipstream check -m qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b --ctx 8192 --slots 4"
PARTS = ("weights", "kv", "compute", "overhead")


def command(
    model: Annotated[str, typer.Option("-m", "--model", help=MODEL_HELP)],
    draft: Annotated[str, typer.Option("--draft", help=DRAFT_HELP)] = "suffix",
    ctx: Annotated[int, typer.Option("--ctx", metavar="N", help="Tokens of context for each slot.")] = 0,
    slots: Annotated[int, typer.Option("--slots", metavar="N", help="Requests at the same time.")] = 1,
    kv_type: Annotated[str, typer.Option("--kv-type", help="Cache of the target: f16, q8_0, …")] = "f16",
    draft_kv_type: Annotated[str, typer.Option("--draft-kv-type", help="Cache of the draft model.")] = "f16",
    gpu_layers: Annotated[
        int | None, typer.Option("--gpu-layers", metavar="N", help="-1: all.", show_default="all that fit")
    ] = None,
    as_json: Json = False,
) -> int:
    """Say what a target and its drafter would need and whether they go together; nothing is loaded.

    Exit code: 0 it fits, 1 it does not, 2 for input that cannot work, such as a pair without a common vocabulary.
    """
    from slipstream.opening import Files, OpenOptions, context, memory_plan

    with Downloads() as progress:
        files = Files.find(model, draft, progress)
    options = OpenOptions(n_ctx=ctx, n_slots=slots, kv_type=kv_type, draft_kv_type=draft_kv_type, gpu_layers=gpu_layers)
    plan, layers, _ = memory_plan(files, options)
    pair = "a drafter without a model goes with every target" if draft != "none" else "plain decoding"
    if files.pair is not None:
        pair = f"{files.pair.n_shared:,} tokens in common" + (f"; {files.pair.note}" if files.pair.note else "")
    rollbacks = {"target": rollback(files.target)} | ({"draft": rollback(files.draft)} if files.draft else {})
    _table(plan)
    print(f"context   {context(files.target, ctx)} tokens for each of {slots} slot(s)")
    print(f"pair      {pair}")
    for role, text in rollbacks.items():
        print(f"rollback  {role}: {text}")
    print("fits" if plan.fits else "does not fit")
    for line in plan.advice:
        say(f"hint: {line}")
    if as_json:
        emit_json(_as_dict(plan) | {"pair": pair, "rollback": rollbacks, "gpu_layers": layers})
    return 0 if plan.fits else 1


def rollback(header: GGUFHeader) -> str:
    """How rejected tokens leave this model's state."""
    if header.is_recurrent or header.is_hybrid:
        kind = "recurrent" if header.is_recurrent else "hybrid"
        return f"{kind}: a checkpoint before each draft, restored after a rejection; chains only"
    if header.sliding_window:
        return f"sliding window of {header.sliding_window}, kept whole: rejected tokens are cut exactly"
    return "full attention: rejected tokens are cut exactly"


def _table(plan: MemoryPlan) -> None:
    from slipstream.models.memory import human

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("model", "device"):
        table.add_column(title)
    for title in ("weights", "KV cache", "compute", "overhead", "total", "free"):
        table.add_column(title, justify="right")
    for row in plan.rows:
        sizes = [human(getattr(row.parts, name)) for name in PARTS]
        table.add_row(row.model, row.device, *sizes, human(row.parts.total), "")
    for device, needed in plan.needed.items():
        table.add_row("all", device, "", "", "", "", human(needed), human(plan.available.get(device, 0)))
    console().print(table)


def _as_dict(plan: MemoryPlan) -> dict[str, Any]:
    """Sizes in bytes."""
    rows = [
        {"model": r.model, "device": r.device, "total": r.parts.total} | {n: getattr(r.parts, n) for n in PARTS}
        for r in plan.rows
    ]
    totals = {"needed": plan.needed, "available": plan.available, "short": plan.short}
    return {"fits": plan.fits, "rows": rows, **totals, "advice": list(plan.advice)}
