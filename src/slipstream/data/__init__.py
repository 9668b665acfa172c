"""Texts that ship with Slipstream."""

from __future__ import annotations

import sys
from importlib.resources import files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def demo_prompts() -> list[tuple[str, str]]:
    """(kind of work, prompt) for the demonstration, kinds in a fixed order; short enough for a small instruct model."""
    return _prompts("prompts.toml")


def tuning_prompts() -> list[tuple[str, str]]:
    """(kind of work, prompt) to choose a draft model by: the demonstration's, one of each kind, and some more kinds."""
    first: dict[str, tuple[str, str]] = {}
    for kind, prompt in demo_prompts():
        first.setdefault(kind, (kind, prompt))
    return [*first.values(), *_prompts("tuning.toml")]


def suite() -> str:
    """JSON Lines of the built-in workload: ten kinds of work, English and Chinese, with natural stops."""
    return files("slipstream.data").joinpath("suite.jsonl").read_text(encoding="utf-8")


def _prompts(file: str) -> list[tuple[str, str]]:
    table = tomllib.loads(files("slipstream.data").joinpath(file).read_text(encoding="utf-8"))
    return [(item["kind"], item["prompt"].strip()) for item in table["prompt"]]
