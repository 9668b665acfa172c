"""`slipstream tune-draft`: make a draft model cheaper, and keep what is fastest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from slipstream.cli.common import Downloads, Stoppable, console, emit_json, say, warn_if_busy
from slipstream.cli.options import MODEL_HELP, Json, MaxTokens
from slipstream.cli.show import percent
from slipstream.cli.workload import SOURCE
from slipstream.errors import InputError, SlipstreamError

if TYPE_CHECKING:
    from slipstream.advise.measure import Work
    from slipstream.advise.rehearse import Script
    from slipstream.advise.tune import Measured, Tuning
    from slipstream.engine import Engine
    from slipstream.opening import Files

EPILOG = (
    "Example: slipstream tune-draft -m qwen2.5-coder-1.5b --draft qwen2.5-coder-0.5b\n\n"
    'A line of a workload: {"kind": "chat", "prompt": "Hello"}'
)


def command(
    model: Annotated[str, typer.Option("-m", "--model", help=MODEL_HELP)],
    draft: Annotated[str, typer.Option("--draft", help="Draft model, written as the target is.")],
    workload: Annotated[str | None, typer.Option("--workload", help=SOURCE)] = None,
    name: Annotated[
        str, typer.Option("--name", help="Name of what is kept.", show_default="the draft's, with -tuned")
    ] = "",
    max_tokens: MaxTokens = 64,
    threads: Annotated[int, typer.Option("--threads", metavar="N", help="0: one a core.")] = 0,
    layers: Annotated[bool, typer.Option("--layers/--no-layers", help="Try leaving layers out, too.")] = True,
    as_json: Json = False,
) -> int:
    """Make variants of a draft model (requantised, layers left out), measure them, and keep the fastest under a name.

    The target answers each prompt once; every variant is then judged by its price on this machine and by what it would
    have guessed of these answers. A draft model changes only the time, never the text. Takes some minutes; Ctrl-C keeps
    the best so far. Exit code 1: nothing is faster than the model as given.
    """
    from slipstream.advise import tune
    from slipstream.engine import Engine
    from slipstream.hub import tuned
    from slipstream.opening import Files

    name = _name(name, draft)
    works = _works(workload)
    with Downloads() as progress:
        files = Files.find(model, draft, progress)
    assert files.draft is not None and files.pair is not None  # a draft model was given
    warn_if_busy()
    tuning, kept = None, None
    room = tuned.workshop(tune.space(files.draft))
    with Stoppable() as stopped, room as folder, Engine.open(model, "suffix", threads=threads) as engine:
        if texts := _listen(engine, works, max_tokens, stopped):
            tuning = _measure_all(files, engine, texts, folder, layers, threads, stopped)
            if tuning.best is not None and not tuning.best.recipe.as_given:
                kept = tuned.keep(name, tuning.file, _facts(model, draft, files, tuning))
    done = tuning.done if tuning else []
    _table(done)
    if stopped.hit:
        say("stopped by Ctrl-C: this is what was complete")
    if kept is not None and tuning is not None and tuning.best is not None:
        print(f"kept as {name} ({tuning.best.recipe}): use it with --draft {name}")
    elif done:
        print("nothing is faster than the draft model as given: nothing was kept")
    if as_json:
        result = {"name": name if kept else None, "path": str(kept) if kept else None, "interrupted": stopped.hit}
        emit_json(result | {"variants": [m.as_dict() for m in done]})
    return 130 if stopped.hit else 0 if kept else 1


def _name(name: str, draft: str) -> str:
    """The name to keep the result under. Raises InputError for one that is taken or for a draft without weights."""
    from slipstream.drafting import Drafting
    from slipstream.hub import tuned

    if Drafting.of(draft).model is None:
        raise InputError(f"{draft} is not a draft model", "there is nothing to tune in a drafter without weights")
    name = name or draft.rpartition("/")[2].removesuffix(".gguf") + "-tuned"
    tuned.check_name(name)
    if Drafting.of(name).model is None:
        raise InputError(f"{name} is the name of a drafter", "choose another --name")
    return name


def _works(workload: str | None) -> Sequence[Work]:
    from slipstream.advise.measure import Work
    from slipstream.advise.workload import load
    from slipstream.data import tuning_prompts

    if workload is None:
        return [Work(kind, prompt) for kind, prompt in tuning_prompts()]
    loaded = load(workload)
    for where, reason in loaded.bad:
        say(f"warning: {Path(workload).name}, {where} is left out: {reason}")
    return loaded.works


def _listen(engine: Engine, works: Sequence[Work], max_tokens: int, stopped: Stoppable) -> list[Script]:
    """What the target says to the prompts; none when stopped before the first."""
    from slipstream.advise.tune import write

    with _busy(f"{engine.name} answers {len(works)} prompts"):
        texts = list(write(engine, works, max_tokens, stopped))
    if not texts and not stopped.hit:
        raise InputError("the target says nothing to these prompts", "give other prompts or a larger --max-tokens")
    return texts


def _measure_all(
    files: Files, engine: Engine, texts: Sequence[Script], folder: Path, layers: bool, threads: int, stopped: Stoppable
) -> Tuning:
    """All variants, each said as soon as it is measured."""
    from slipstream.advise.tune import Tuning, recipes

    assert files.draft is not None and files.pair is not None
    with _busy("measuring the price of its forwards"):
        tuning = Tuning(files.draft, texts, engine, folder, files.pair.n_shared, threads, stopped)
    say("its forwards: " + ", ".join(f"T({n}) {1000 * tuning.target_price(n):.0f} ms" for n in (1, 2, 4, 8, 12)))
    for recipe in recipes(files.draft):
        if stopped.hit:
            break
        with _busy(f"trying {recipe}"), _passable():
            if found := tuning.measure(recipe):
                _say(found)
    if layers and not stopped.hit:
        with _busy("leaving layers out"), _passable():
            for found in tuning.shorter():
                _say(found)
    return tuning


@contextmanager
def _passable() -> Iterator[None]:
    """A variant that cannot be made, loaded or trusted here is no reason to lose the others."""
    try:
        yield
    except SlipstreamError as e:
        say(f"warning: left out: {e.message}")


def _busy(what: str) -> AbstractContextManager[object]:
    """A line that moves while something takes its time; off a terminal, the line alone."""
    err = console(stderr=True)
    if err.is_terminal:
        return err.status(what)
    say(what)
    return nullcontext()


def _say(m: Measured) -> None:
    say(f"  {m.recipe}: {1000 * m.draft_s:.1f} ms a token, {percent(m.agreement)} agree, {m.speedup:.2f}x")


def _table(found: Sequence[Measured]) -> None:
    """All variants, fastest first; speed-ups are predictions."""
    if not found:
        return
    kinds = list(found[0].forecasts)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("variant")
    for title in ("size\nMB", "ms a\ntoken", "same as\ntarget", *(k.replace(" ", "\n", 1) for k in kinds), "all"):
        table.add_column(title, justify="right")
    for m in sorted(found, key=lambda m: -m.speedup):
        speedups = [f"{m.forecasts[kind].speedup:.2f}x" for kind in kinds]
        numbers = (f"{m.size / 1e6:,.0f}", f"{1000 * m.draft_s:.1f}", percent(m.agreement))
        table.add_row(str(m.recipe), *numbers, *speedups, f"{m.speedup:.2f}x")
    console().print(table)


def _facts(model: str, draft: str, files: Files, tuning: Tuning) -> dict[str, Any]:
    """What the kept file is made of and how, and what was measured."""
    from slipstream.advise.provenance import provenance
    from slipstream.hub import models

    assert files.draft is not None and tuning.best is not None
    best = tuning.best
    licence = next((m.licence for m in models() if m.name == draft), "as the original's")
    made = {"target": model, "draft": draft, "recipe": str(best.recipe), "quantisation": best.quantisation}
    origin = provenance({"target": files.target.path, "draft": files.draft.path}, tuning.threads)
    return {**made, "licence": licence, "measured": [m.as_dict() for m in tuning.done], "provenance": origin}
