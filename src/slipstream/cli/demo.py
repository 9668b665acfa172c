"""`slipstream demo`: five kinds of work on a tiny model, plain and speculative, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.common import Stoppable, emit_json, open_engine, say, warn_if_busy
from slipstream.cli.options import EngineOptions, Json, grouped

if TYPE_CHECKING:
    from slipstream.advise.measure import Work

MODEL, DRAFTER = "smollm2-135m", "suffix"
ROUNDS, BUDGET_S = 3, 140.0
EPILOG = "Example: slipstream demo\n\nExample: slipstream demo --quick --json"


@grouped
def command(
    quick: Annotated[bool, typer.Option("--quick", help="One prompt of each kind, and short answers.")] = False,
    as_json: Json = False,
) -> int:
    """See what speculative decoding gives on this machine: a tiny model, five kinds of work, three minutes at most.

    Each prompt runs plain and speculative in turn, greedy, on one engine. tok/s: tokens of decoding over its seconds,
    drafting included and prompt reading left out. Acceptance rate: accepted of verified drafted tokens. Acceptance
    length: tokens for each forward of the model. Same text: token for token; a near tie is a place where the best two
    tokens are so close that rounding chooses.
    """
    from slipstream.advise import measure
    from slipstream.advise.provenance import provenance
    from slipstream.cli.show import rows_table
    from slipstream.hub import resolve

    warn_if_busy()
    options = EngineOptions(MODEL, DRAFTER)
    with open_engine(options, n_ctx=1024) as engine, Stoppable() as stopped:
        load = measure.Workload(engine, _works(quick), max_tokens=48 if quick else 96)
        say(f"{MODEL}, drafter {DRAFTER}, priced: {len(load.works)} prompts, plain and speculative in turn")
        for n, work in enumerate(load.rounds(1 if quick else ROUNDS, stopped, BUDGET_S), 1):
            say(f"  {n} {work.kind}")
        samples = load.samples()
    rows = measure.rows(samples)
    rows_table(rows, [measure.verdict(r) for r in rows])
    ties = sum(r.near_ties for r in rows)
    if ties:
        say(f"near ties: {ties} (the best two tokens were closer than rounding; both texts are the model's own)")
    if as_json:
        emit_json(
            {
                "model": MODEL,
                "drafter": DRAFTER,
                "policy": "priced",
                "rows": [r.as_dict() for r in rows],
                "interrupted": stopped.hit,
                "provenance": provenance({"target": resolve(MODEL, fetch=False)}),
            }
        )
    if stopped.hit:
        return 130
    return 1 if any(r.mismatches for r in rows) else 0


def _works(quick: bool) -> list[Work]:
    from slipstream.advise.measure import Work
    from slipstream.data import demo_prompts

    works = [Work(kind, prompt) for kind, prompt in demo_prompts()]
    if not quick:
        return works
    first: dict[str, Work] = {}
    for work in works:
        first.setdefault(work.kind, work)
    return list(first.values())
