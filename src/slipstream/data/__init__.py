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
    table = tomllib.loads(files("slipstream.data").joinpath("prompts.toml").read_text(encoding="utf-8"))
    return [(item["kind"], item["prompt"].strip()) for item in table["prompt"]]
