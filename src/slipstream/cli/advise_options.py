"""How much an advice measures and what it writes: the options of `slipstream advise`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slipstream.cli.common import check_writable, write_whole
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.advise.advice import Advice
    from slipstream.advise.advisor import Settings

_OUTPUT = "Output"


@dataclass(frozen=True)
class _Size:
    per_kind: int
    max_tokens: int
    runs: int
    real: int  # ways that are run for real
    minutes: float


# More prompts say more than more runs of the same; two runs are made as far as the time allows.
QUICK, FULL = _Size(4, 96, 1, 2, 18), _Size(8, 128, 2, 3, 55)


@dataclass
class Amount:
    """How many prompts, tokens and runs; what is left open is as `quick` says."""

    quick: Annotated[bool, typer.Option("--quick", help="Fewer prompts and runs: minutes instead of an hour.")] = False
    per_kind: Annotated[
        int | None, typer.Option("--per-kind", metavar="N", help="Prompts of each kind.", show_default="8, quick: 4")
    ] = None
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", metavar="N", help="Of an answer.", show_default="128, quick: 96")
    ] = None
    runs: Annotated[
        int | None, typer.Option("--runs", metavar="N", help="Of each prompt, all ways.", show_default="2, quick: 1")
    ] = None
    minutes: Annotated[
        float | None, typer.Option("--minutes", help="After so many, no run begins.", show_default="55, quick: 18")
    ] = None
    temperature: Annotated[float, typer.Option("--temperature", help="Of the answers; 0 is greedy.")] = 0.0
    seed: Annotated[int, typer.Option("--seed", help="Of the answers' noise and of the order of runs.")] = 0
    threads: Annotated[int, typer.Option("--threads", metavar="N", help="0: one a core.")] = 0
    corpus: Annotated[
        list[Path] | None, typer.Option("--corpus", metavar="PATH", help="Try drafting from these texts, too.")
    ] = None

    @property
    def size(self) -> _Size:
        """Raises InputError for numbers that make no sense."""
        base = QUICK if self.quick else FULL
        names = ("per_kind", "max_tokens", "runs", "minutes")
        given = {n: getattr(base, n) if getattr(self, n) is None else getattr(self, n) for n in names}
        size = _Size(**given, real=base.real)
        if size.per_kind < 1 or size.max_tokens < 2 or size.runs < 1 or not 0 < size.minutes < 1e6:
            raise InputError(
                "--per-kind and --runs must be 1 or more, --max-tokens 2 or more, --minutes above 0",
                "leave them out for the defaults",
            )
        return size

    def settings(self) -> Settings:
        """As the advisor takes them. Raises InputError for values out of range."""
        from slipstream.advise.advisor import Settings

        size = self.size
        found = Settings(
            size.max_tokens, size.runs, size.real, 60 * size.minutes, self.temperature, self.seed, self.threads,
            tuple(self.corpus or ()),
        )  # fmt: skip
        found.sampling  # noqa: B018 - refuses values out of range
        return found


@dataclass
class Outputs:
    """Files to write."""

    out: Annotated[
        Path | None, typer.Option("--out", help="The advice as JSON.", rich_help_panel=_OUTPUT)
    ] = None  # fmt: skip
    html: Annotated[Path | None, typer.Option("--html", help="The report.", rich_help_panel=_OUTPUT)] = None
    markdown: Annotated[Path | None, typer.Option("--markdown", help="A summary.", rich_help_panel=_OUTPUT)] = None
    png: Annotated[
        Path | None, typer.Option("--png", metavar="FOLDER", help="The charts.", rich_help_panel=_OUTPUT)
    ] = None  # fmt: skip
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="What --plan of run, chat and export takes, as TOML.", rich_help_panel=_OUTPUT),
    ] = None
    lang: Annotated[
        str, typer.Option("--lang", help="Of report and table: en or zh.", rich_help_panel=_OUTPUT)
    ] = "en"  # fmt: skip
    redact: Annotated[
        bool, typer.Option("--redact", help="No text of yours in any output.", rich_help_panel=_OUTPUT)
    ] = False  # fmt: skip

    def check(self) -> None:
        """Raises InputError now for a file that could not be written, or a language that is not spoken."""
        from slipstream.advise.wording import Words

        Words(self.lang)
        files = [path for path in (self.out, self.html, self.markdown, self.plan) if path is not None]
        for path in files:
            check_writable(path)
            if sum(path.resolve() == other.resolve() for other in files) > 1:
                raise InputError(f"{path} is named twice", "give each output a file of its own")
        if self.png is not None and self.png.exists() and not self.png.is_dir():
            raise InputError(f"{self.png} is a file", "name a folder for the charts")

    def write(self, advice: Advice, named: Advice) -> None:
        """`named` has its files with their folders, which a plan needs."""
        if self.out is not None:
            write_whole(self.out, advice.model_dump_json(indent=2) + "\n")
        if self.plan is not None:
            from slipstream.advise import plan

            write_whole(self.plan, plan.text(plan.Plan.of(named), self.plan.name))
        if self.html or self.markdown or self.png:
            from slipstream.advise import report

            if self.html is not None:
                report.write_html(advice, self.html, self.lang)
            if self.markdown is not None:
                report.write_markdown(advice, self.markdown, self.lang)
            if self.png is not None:
                report.write_png(advice, self.png, self.lang)
