"""llama-server (llama.cpp 0.6.0-dev, build 11434): names from its `--help` and docs/speculative.md.

`-md` alone drafts nothing: `--spec-type` must name a kind. `--spec-draft-n-max` is the draft model's length only; that
of ngram-simple is `--spec-ngram-simple-size-m`. Draftless kinds come before the draft model.
"""

from __future__ import annotations

from slipstream.advise.export.setup import Export, Setup, command, ways

# Tokens that must have stood together before. The default, 12, hardly ever matches in new text; below 3, without a
# weight for each guess, matches are chance.
MATCH = 3


def export(setup: Setup) -> Export:
    way = ways(setup, "llama-server", lookup="ngram-simple", both=True, threads=True)
    argv = ["llama-server", "-m", str(setup.target)]
    if setup.threads:
        argv += ["-t", str(setup.threads)]
    kinds = ["ngram-simple"] * way.lookup + ["draft-simple"] * (way.draft is not None)
    if kinds:
        argv += ["--spec-type", ",".join(kinds)]
    if way.lookup:
        argv += ["--spec-ngram-simple-size-n", str(MATCH), "--spec-ngram-simple-size-m", str(way.length)]
    if way.draft is not None:
        argv += ["-md", str(way.draft), "--spec-draft-n-max", str(way.length)]
    return command("llama-server", argv, way.notes)
