"""A plan for other engines: the exact command or program, and what cannot be carried over.

Nothing is invented: what an engine has no option for is left out and said in a note, and when nothing of the draft
would be left, the export is refused. Each engine has a file of its own, whose docstring says where its names come from.
"""

from __future__ import annotations

from importlib import import_module

from slipstream.advise.export.setup import Export, Setup
from slipstream.errors import UnknownName

__all__ = ["ENGINES", "Export", "Setup", "export"]

ENGINES = ("llama-server", "vllm", "sglang", "transformers", "openvino", "lm-studio")


def export(to: str, setup: Setup) -> Export:
    """Raises UnknownName for another engine, InputError when it can do nothing of what the plan drafts with."""
    if to not in ENGINES:
        raise UnknownName("engine", to, ENGINES)
    made: Export = import_module(f"slipstream.advise.export.{to.replace('-', '_')}").export(setup)
    return made
