"""`slipstream run`: one prompt, its text as it comes, and what drafting did for it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slipstream.cli.common import Stoppable, emit_json, open_engine, say
from slipstream.cli.options import EngineOptions, Json, MaxTokens, SamplingOptions, check_bias, grouped
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.advise.measure import Row, Sample
    from slipstream.engine import Engine
    from slipstream.generation import Chunk, Request

EPILOG = (
    'Example: slipstream run -m smollm2-135m "Tell me about rivers"\n\n'
    "Example: slipstream run -m qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b --compare - < prompt.txt"
)


@grouped
def command(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - or nothing reads it from stdin.")] = None,
    engine: EngineOptions = ...,  # type: ignore[assignment]
    sampling: SamplingOptions = ...,  # type: ignore[assignment]
    max_tokens: MaxTokens = 256,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="End before this text; may be repeated.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Take the prompt as it is, without the chat template.")] = False,
    predict: Annotated[
        Path | None,
        typer.Option("--predict", metavar="FILE", help="Text that the answer will be like, such as the file to edit."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show every step: considered, chosen, earned.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Run plain and speculative in turn, twice each, and say which is faster.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Generate text for one prompt: text to stdout, statistics to stderr. Ctrl-C ends it and keeps the text so far."""
    from slipstream.generation import Request

    if compare and explain:
        raise InputError("--explain shows one run, and --compare makes four", "leave out one of the two")
    text = read_prompt(prompt)
    expected = None if predict is None else _read(predict)
    request = Request(
        text, max_tokens=max_tokens, stop=tuple(stop or ()), sampling=sampling.params(), prediction=expected
    )
    if expected is not None and "predicted" not in engine.draft.split(","):
        engine.draft = "predicted" if engine.draft == "none" else f"{engine.draft},predicted"
    with open_engine(engine) as opened:
        check_bias(opened, request.sampling)
        if not raw and opened.tokenizer.chat_template:
            request = replace(request, prompt=None, messages=[{"role": "user", "content": text}])
        with Stoppable() as stopped:
            if compare:
                return _compare(opened, request, stopped, as_json)
            return _generate(opened, request, stopped, as_json, explain)


def read_prompt(prompt: str | None) -> str:
    """The argument, or stdin without its last line break. Raises InputError when there is nothing."""
    if prompt is None or prompt == "-":
        if sys.stdin.isatty():
            say("reading the prompt from the terminal; Ctrl-D ends it")
        prompt = sys.stdin.buffer.read().decode("utf-8", "replace").removesuffix("\n")
    if not prompt:
        raise InputError("the prompt is empty", "give at least one character, as an argument or on stdin")
    return prompt


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"cannot read {path}: {getattr(e, 'strerror', 'not UTF-8')}", "give a text file") from e


def _generate(engine: Engine, request: Request, stopped: Stoppable, as_json: bool, explain: bool) -> int:
    from slipstream.advise import measure
    from slipstream.cli.show import ColouredText, statistics, steps

    out = ColouredText()
    chunks: list[Chunk] = []

    def hear(chunk: Chunk) -> None:
        chunks.append(chunk)
        if not as_json:
            out.write(chunk.segments)

    result = measure.run(engine, request, hear, stopped)
    if not as_json:
        out.end()
    records = [c.record for c in chunks if c.record is not None]
    if explain:
        steps(records)
    statistics(result)
    if stopped.hit:
        say("stopped by Ctrl-C; the text so far is kept")
    if as_json:
        each = {"steps": [r.as_dict() for r in records]} if explain else {}
        emit_json({**result.as_dict(), **each, "status": engine.status, "interrupted": stopped.hit})
    return 130 if stopped.hit else 0


def _compare(engine: Engine, request: Request, stopped: Stoppable, as_json: bool) -> int:
    from slipstream.advise import measure
    from slipstream.cli.show import ColouredText, statistics

    if not engine.drafters or not engine.policy.most.nodes:
        raise InputError(f"nothing to compare: {engine.status['reason']}", "give a --draft and a --k above 0")
    say("plain and speculative in turn, twice each …")
    measure.run(engine, replace(request, max_tokens=min(8, request.max_tokens or 8)), stopped=stopped)  # warm up
    pairs = [p for _ in range(2) if (p := measure.pair(engine, request, True, stopped))]
    if not pairs:
        say("stopped by Ctrl-C before both had run once")
        if as_json:
            emit_json({"interrupted": True})
        return 130
    sample = measure.sample(engine, "this prompt", request, pairs)
    row, result = measure.row(sample.kind, [sample]), pairs[-1].spec
    if not as_json:
        out = ColouredText()
        out.write(result.segments)
        out.end()
    statistics(result)
    for line in _judgement(engine, row, sample):
        say(line)
    if as_json:
        comparison = sample.comparison.as_dict() if sample.comparison else None
        more: dict[str, Any] = {"comparison": row.as_dict() | {"difference": comparison}, "interrupted": stopped.hit}
        emit_json({**result.as_dict(), "status": engine.status, **more})
    if stopped.hit:
        return 130
    return 1 if row.mismatches else 0


def _judgement(engine: Engine, row: Row, sample: Sample) -> list[str]:
    """Speeds, sameness and advice, a line each."""
    from slipstream.core.policy import Fixed

    if row.speedup is None or row.plain_tps is None or row.spec_tps is None:
        return ["the text is too short to compare speeds"]
    lines = [f"plain {row.plain_tps:.1f} tok/s, speculative {row.spec_tps:.1f} tok/s: {row.speedup:.2f}x"]
    if sample.comparison is None:
        lines.append(f"text: with --verify {engine.verify} and a temperature it may differ from plain's")
    else:
        lines.append(f"text: {sample.comparison}")
    if row.mismatches:
        lines.append("this is no near-tie: please report it, with this command and `slipstream doctor --json`")
    if row.speedup < 1:
        lines.append(
            f"on this machine this was slower than plain decoding: {row.speedup:.2f}x. Leave it off for such work"
            + (", or leave out --k, so that only what pays is drafted" if isinstance(engine.policy, Fixed) else "")
        )
    return lines
