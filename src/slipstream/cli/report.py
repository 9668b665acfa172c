"""`slipstream report`: an advice as a page, as Markdown, or as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.common import check_writable, emit_json, say
from slipstream.cli.options import Json
from slipstream.errors import InputError

EPILOG = (
    "Example: slipstream report advice.json\n\n"
    "Example: slipstream report advice.json --html page.html --markdown summary.md --png charts --lang zh"
)


def command(
    advice: Annotated[Path, typer.Argument(metavar="ADVICE.json", help="What `slipstream advise --out` wrote.")],
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="One page that needs nothing beside it.",
            show_default="beside the advice, if nothing else is asked for",
        ),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="The verdict and a table.")
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FOLDER", help="The charts, made if need be.")] = None,
    lang: Annotated[str, typer.Option("--lang", metavar="en|zh", help="English or Chinese.")] = "en",
    as_json: Json = False,
) -> int:
    """Make a report from an advice; nothing is measured again.

    Without --html, --markdown or --png a page is written beside the advice. Pictures are labelled in English where no
    font with Chinese characters is installed.
    """  # fmt: skip
    from slipstream.advise import report
    from slipstream.advise.advice import read
    from slipstream.advise.wording import Words, summary

    Words(lang)
    if html is None and markdown is None and png is None:
        html = advice.with_suffix(".html")
    _check(advice, html, markdown)
    found = read(advice)
    written = []
    if html is not None:
        report.write_html(found, html, lang)
        written.append(html)
    if markdown is not None:
        report.write_markdown(found, markdown, lang)
        written.append(markdown)
    if png is not None:
        written += report.write_png(found, png, lang)
    print(summary(found, lang))
    for path in written:
        say(f"written: {path}")
    if as_json:
        emit_json({"summary": summary(found, lang), "written": [str(path) for path in written]})
    return 0


def _check(advice: Path, *files: Path | None) -> None:
    """Raises InputError for a file that cannot be written, that is the advice itself, or that is named twice."""
    seen = {advice.resolve()}
    for path in files:
        check_writable(path)
        if path is not None and path.resolve() in seen:
            raise InputError(f"{path} would be overwritten", "give each output a file of its own")
        if path is not None:
            seen.add(path.resolve())
