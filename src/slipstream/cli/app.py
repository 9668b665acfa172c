"""The `slipstream` command: its sub-commands, and one way in which every error ends."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from slipstream import __version__
from slipstream.cli import (
    advise,
    audit,
    bench,
    chat,
    check,
    cost,
    demo,
    doctor,
    export,
    matrix,
    models,
    pull,
    report,
    run,
    serve,
    tune_draft,
    workload,
)
from slipstream.errors import SlipstreamError

INTERRUPTED = 130  # 128 + SIGINT, as shells count

app = typer.Typer(
    name="slipstream",
    help="Speculative decoding on your own machine: the same text, sooner, and an honest word on whether it pays.",
    epilog='Example: slipstream demo\n\nExample: slipstream run -m smollm2-135m "Tell me about rivers"',
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    return None


COMMANDS = (
    demo, run, chat, serve, advise, report, export, bench, audit, check, cost, doctor, matrix, models, pull, tune_draft,
    workload,
)  # fmt: skip
for module in COMMANDS:
    app.command(module.__name__.rpartition(".")[2].replace("_", "-"), epilog=module.EPILOG)(module.command)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 1 (it ran, and the answer is no), 2 (bad input), 130 (Ctrl-C).

    Errors are `error:` and `hint:` lines on stderr; with --json also an object as the last line on stdout.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, stream=sys.stderr, force=True)
    logging.addLevelName(logging.WARNING, "warning")
    try:
        code = app(args, prog_name="slipstream", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except SlipstreamError as e:
        return _fail(args, e.message, e.hint, e.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail(args, "interrupted", "", INTERRUPTED)
    except BrokenPipeError:  # the reader, such as head, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as e:
        if hasattr(e, "format_message"):  # what the option parser says; its class moves between typer's versions
            message, hint = _parsing(e)
            return _fail(args, message, hint, 2) if message else 2  # none: help was shown
        if os.environ.get("SLIPSTREAM_DEBUG"):
            traceback.print_exc()
        return _fail(
            args, f"{type(e).__name__}: {e}", "this is a bug; set SLIPSTREAM_DEBUG=1 and run it again for details", 1
        )


def _parsing(e: Exception) -> tuple[str, str]:
    """Message and hint of the option parser's exception; the nearest names become the hint."""
    message: str = e.format_message()  # type: ignore[attr-defined]
    if near := re.search(r"(?:Did you mean|Possible options:|one of:) (.+?)[?)]*$", message):
        return message[: near.start()].rstrip(" (."), f"did you mean {near[1]}?"
    context = getattr(e, "ctx", None)
    return message, f"`{context.command_path if context else 'slipstream'} --help` lists what there is"


def _fail(args: Sequence[str], message: str, hint: str, code: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    if hint:
        print(f"hint: {hint}", file=sys.stderr)
    if "--json" in args:
        print(json.dumps({"error": message, "hint": hint}), flush=True)
    return code
