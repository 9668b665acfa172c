"""`slipstream export`: the plan in another engine's own words."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.common import emit_json, say
from slipstream.cli.options import DRAFT_HELP, MODEL_HELP
from slipstream.drafting import DEFAULT
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.advise.export import Setup

EPILOG = (
    "Example: slipstream export --to llama-server --plan plan.toml\n\n"
    "Example: slipstream export --to transformers -m smollm2-135m --draft suffix > chat.py"
)


def command(
    to: Annotated[
        str,
        typer.Option("--to", metavar="ENGINE", help="llama-server, vllm, sglang, transformers, openvino or lm-studio."),
    ],
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="As `slipstream advise` made it.")] = None,
    model: Annotated[str | None, typer.Option("-m", "--model", help=MODEL_HELP)] = None,
    draft: Annotated[str | None, typer.Option("--draft", help=DRAFT_HELP, show_default=DEFAULT)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> int:
    """Print the command or the Python program that runs the plan in another engine, with that engine's names of today.

    Only that goes to stdout, so it can be piped or saved. What the engine cannot do is left out and said on stderr;
    when no drafting would be left, the export is refused.
    """
    from slipstream.advise import export as exports

    if (plan is None) == (model is None) or (plan is not None and draft is not None):
        raise InputError("give either a plan or a model", "--plan FILE, or -m MODEL and, if you like, --draft DRAFT")
    made = exports.export(to, _setup(plan, model, draft))
    for note in made.notes:
        say(f"note: {note}")
    if as_json:
        emit_json(made.as_dict())
    else:
        sys.stdout.write(made.text)
    return 0


def _setup(plan: Path | None, model: str | None, draft: str | None) -> Setup:
    from slipstream.advise.export import Setup
    from slipstream.advise.plan import read

    if plan is None:
        return Setup.named(model or "", DEFAULT if draft is None else draft)
    found = read(plan)
    for file in (found.target, found.draft_model):
        if file and (doubt := file.doubt(file.model)):
            say(f"warning: {plan.name}: {doubt}; its figures may not hold")
    return Setup.of(found)
