"""`slipstream bench`: the user's own prompts, plain and speculative in turn."""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.common import Stoppable, check_writable, emit_json, open_engine, say, warn_if_busy, write_whole
from slipstream.cli.endpoint import API_KEY_HELP, ENDPOINT_HELP, bench_endpoints
from slipstream.cli.options import EngineOptions, Json, MaxTokens, SamplingOptions, check_bias, grouped
from slipstream.cli.workload import SOURCE
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.advise.workload import Loaded
    from slipstream.core.types import SamplingParams

EPILOG = (
    "Example: slipstream bench -m qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b --workload prompts.jsonl --runs 5\n\n"
    "Example: slipstream bench --endpoint localhost:8080 --endpoint localhost:8081 --workload builtin --per-kind 2\n\n"
    'A line of the workload: {"kind": "chat", "prompt": "Hello"}'
)


@dataclass
class Options(EngineOptions):
    """To measure a server no model has to be named, so whether one is missing is asked later."""

    def complete(self, given: Set[str]) -> None:
        self._given = given

    def ours(self) -> None:
        """For our own engine: as other commands complete their options."""
        super().complete(self._given)

    def refuse(self, names: Set[str], why: str) -> None:
        """Raises InputError when the command line has one of these options."""
        if wrong := sorted(names & self._given):
            raise InputError(
                f"--{wrong[0].replace('_', '-')} and --endpoint do not go together", f"leave it out; {why}"
            )


@grouped
def command(
    workload: Annotated[str, typer.Option("--workload", help=SOURCE)],
    engine: Options = ...,  # type: ignore[assignment]
    sampling: SamplingOptions = ...,  # type: ignore[assignment]
    runs: Annotated[int, typer.Option("--runs", metavar="N", help="How often each prompt runs, both ways.")] = 3,
    per_kind: Annotated[int, typer.Option("--per-kind", metavar="N", help="Take N prompts of each kind; 0: all.")] = 0,
    max_tokens: MaxTokens = 128,
    raw: Annotated[bool, typer.Option("--raw", help="Take prompts as they are, without the chat template.")] = False,
    endpoint: Annotated[list[str] | None, typer.Option("--endpoint", metavar="URL", help=ENDPOINT_HELP)] = None,
    api_key_env: Annotated[str, typer.Option("--api-key-env", metavar="NAME", help=API_KEY_HELP)] = "",
    out: Annotated[Path | None, typer.Option("--out", help="Write the JSON result to this file too.")] = None,
    as_json: Json = False,
) -> int:
    """Measure your own prompts: plain and speculative decoding in turn, or one or two servers.

    tok/s: tokens of decoding over its seconds, drafting included, prompt reading left out. The interval holds the true
    speed-up with 95 % confidence (bootstrap over prompts and runs). Ctrl-C prints what was measured so far.
    Servers are asked greedily, one request at a time; acceptance is theirs to tell, and "-" where they do not.
    """
    from slipstream.advise.workload import load

    if runs < 1:
        raise InputError(f"runs is {runs}", "give 1 or more; 5 make an interval that means something")
    if per_kind < 0:
        raise InputError(f"--per-kind is {per_kind}", "give 1 or more, or 0 for all")
    if not endpoint and api_key_env:
        raise InputError("--api-key-env is for a server, and none is named", "add --endpoint URL")
    if endpoint:
        engine.refuse({f.name for f in fields(engine)} - {"model"}, "set it where the server is started")
        engine.refuse({f.name for f in fields(sampling)}, "servers are asked greedily")
    else:
        engine.ours()
    check_writable(out)
    params, loaded = sampling.params(), load(workload)
    for where, reason in loaded.bad:
        say(f"warning: {Path(workload).name}, {where} is left out: {reason}")
    loaded = loaded.cut(per_kind) if per_kind else loaded
    config: dict[str, Any] = {
        "runs": runs,
        "per_kind": per_kind,
        "max_tokens": max_tokens,
        "raw": raw,
        "workload": Path(workload).name,
        "bad_lines": loaded.bad,
    }
    if endpoint:
        result, code = bench_endpoints(endpoint, loaded.works, config, engine.model, api_key_env)
    else:
        result, code = _own(engine, params, loaded, config)
        result["config"] |= {"engine": plain_values(engine), "sampling": vars(sampling)}
    if out is not None:
        write_whole(out, json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    if as_json:
        emit_json(result)
    return code


def _own(
    engine: EngineOptions, params: SamplingParams, loaded: Loaded, config: dict[str, Any]
) -> tuple[dict[str, Any], int]:
    """Plain and speculative decoding on this engine: the result and the exit code."""
    from slipstream.advise import measure
    from slipstream.cli.show import rows_table

    warn_if_busy()
    with open_engine(engine) as opened, Stoppable() as stopped:
        if not opened.drafters or not opened.policy.most.nodes:
            raise InputError(f"nothing to compare: {opened.status['reason']}", "give a --draft and a --k above 0")
        check_bias(opened, params)
        session = measure.Workload(
            opened, loaded.works, config["raw"], max_tokens=config["max_tokens"], sampling=params
        )
        total = config["runs"] * len(session.works)
        for n, work in enumerate(session.rounds(config["runs"], stopped), 1):
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
    result = {
        "model": status["target"],
        "drafter": status["drafter"],
        "rows": [r.as_dict() for r in rows],
        "notes": notes,
        "config": config,
        "interrupted": stopped.hit,
        "provenance": provenance_of(engine),
    }
    return result, 130 if stopped.hit else 1 if any(r.mismatches for r in rows) else 0


def plain_values(options: EngineOptions) -> dict[str, Any]:
    """As JSON can hold them."""
    corpus = [str(path) for path in options.corpus or ()]
    values = {f.name: getattr(options, f.name) for f in fields(options)}
    return values | {"corpus": corpus, "save_corpus": str(options.save_corpus or "") or None}


def provenance_of(options: EngineOptions) -> dict[str, Any]:
    """Where the numbers come from, the files of target and draft model included."""
    from slipstream.advise.provenance import provenance
    from slipstream.drafting import Drafting
    from slipstream.hub import resolve

    files = {"target": resolve(options.model)}
    if model := Drafting.of(options.draft).model:
        files["draft"] = resolve(model)
    return provenance(files, options.threads)
