"""`slipstream bench`: the user's own prompts, plain and speculative in turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from slipstream.cli.common import Stoppable, check_writable, emit_json, open_engine, say, warn_if_busy, write_whole
from slipstream.cli.options import EngineOptions, Json, MaxTokens, SamplingOptions, check_bias, grouped
from slipstream.errors import InputError

EPILOG = (
    "Example: slipstream bench -m qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b --workload prompts.jsonl --runs 5\n\n"
    'A line of the workload: {"kind": "chat", "prompt": "Hello"}'
)


@grouped
def command(
    workload: Annotated[Path, typer.Option("--workload", help="JSON Lines: kind, and prompt or messages.")],
    engine: EngineOptions = ...,  # type: ignore[assignment]
    sampling: SamplingOptions = ...,  # type: ignore[assignment]
    runs: Annotated[int, typer.Option("--runs", metavar="N", help="How often each prompt runs, both ways.")] = 3,
    max_tokens: MaxTokens = 128,
    raw: Annotated[bool, typer.Option("--raw", help="Take prompts as they are, without the chat template.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the JSON result to this file too.")] = None,
    as_json: Json = False,
) -> int:
    """Measure your own prompts: medians and spread of plain and speculative decoding, run in turn.

    tok/s: tokens of decoding over its seconds, drafting included, prompt reading left out. The interval holds the true
    speed-up with 95 % confidence (bootstrap over prompts and runs). Ctrl-C prints what was measured so far.
    """
    from slipstream.advise import measure
    from slipstream.advise.workload import load
    from slipstream.cli.show import rows_table

    if runs < 1:
        raise InputError(f"runs is {runs}", "give 1 or more; 5 make an interval that means something")
    check_writable(out)
    params, loaded = sampling.params(), load(workload)
    for number, reason in loaded.bad:
        say(f"warning: {workload.name}, line {number} is left out: {reason}")
    warn_if_busy()
    with open_engine(engine) as opened, Stoppable() as stopped:
        if not opened.drafters or not opened.policy.most.nodes:
            raise InputError(f"nothing to compare: {opened.status['reason']}", "give a --draft and a --k above 0")
        check_bias(opened, params)
        session = measure.Workload(opened, loaded.works, raw, max_tokens=max_tokens, sampling=params)
        total = runs * len(session.works)
        for n, work in enumerate(session.rounds(runs, stopped), 1):
            say(f"  {n}/{total} {work.kind}")
        samples = session.samples()
        rows = measure.rows(samples)
        status = opened.status
    rows_table(rows, [measure.verdict(r) for r in rows])
    if stopped.hit:
        say("stopped by Ctrl-C: these are the runs that were complete")
    notes = sorted({note for s in samples for p in s.pairs for note in p.spec.notes})
    for note in notes:
        say(f"note: {note}")
    config = {"runs": runs, "max_tokens": max_tokens, "raw": raw, "workload": workload.name, "bad_lines": loaded.bad}
    result = {
        "model": status["target"],
        "drafter": status["drafter"],
        "rows": [r.as_dict() for r in rows],
        "notes": notes,
        "config": config | {"engine": plain_values(engine), "sampling": vars(sampling)},
        "interrupted": stopped.hit,
        "provenance": provenance_of(engine),
    }
    if out is not None:
        write_whole(out, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    if as_json:
        emit_json(result)
    return 130 if stopped.hit else 1 if any(r.mismatches for r in rows) else 0


def plain_values(options: EngineOptions) -> dict[str, Any]:
    """As JSON can hold them."""
    corpus = [str(path) for path in options.corpus or ()]
    return vars(options) | {"corpus": corpus, "save_corpus": str(options.save_corpus or "") or None}


def provenance_of(options: EngineOptions) -> dict[str, Any]:
    """Where the numbers come from, the files of target and draft model included."""
    from slipstream.advise.provenance import provenance
    from slipstream.drafting import Drafting
    from slipstream.hub import resolve

    files = {"target": resolve(options.model)}
    if model := Drafting.of(options.draft).model:
        files["draft"] = resolve(model)
    return provenance(files, options.threads)
