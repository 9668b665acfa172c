"""LM Studio: names from its Python SDK (lmstudio 1.5) and its documents python/llm-prediction/speculative-decoding and
cli/local-models/import. It drafts with a draft model only, and chooses the length itself."""

from __future__ import annotations

from slipstream.advise.export.setup import READ_PROMPT, Export, Setup, program, ways


def export(setup: Setup) -> Export:
    way = ways(setup, "LM Studio", fixed=False)
    files = [setup.target, *([way.draft] if way.draft else [])]
    keys = [file.stem.lower() for file in files]
    more = f', config={{"draftModel": {keys[1]!r}}}' if way.draft else ""
    lines = [
        f'"""Decoding with LM Studio{", with drafts" if way.any else ""}. Usage: python FILE "a prompt" """',
        "",
        "import sys",
        "",
        "import lmstudio as lms",
        "",
        f"model = lms.llm({keys[0]!r})",
        READ_PROMPT,
        f"print(model.respond(prompt{more}))",
    ]
    notes = [
        *way.notes,
        f"LM Studio has its own names for models: import {' and '.join(map(str, files))} with `lms import --copy`, and "
        f"correct {' and '.join(keys)} where `lms ls` says otherwise",
        "it needs the package lmstudio, and LM Studio running",
    ]
    return program("lm-studio", "\n".join(lines) + "\n", notes)
