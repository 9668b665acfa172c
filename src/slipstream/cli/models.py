"""`slipstream models`: what has a name."""

from __future__ import annotations

from rich.table import Table

from slipstream.cli.common import console, emit_json
from slipstream.cli.options import Json

EPILOG = "Example: slipstream models --json"


def command(as_json: Json = False) -> int:
    """List the models that have a name: size, licence, whether they are here, and which suit as draft models."""
    from slipstream.hub import models

    found = models()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("name")
    table.add_column("size", justify="right")
    for title in ("quantisation", "licence", "installed", "drafts", "description"):
        table.add_column(title)
    for m in found:
        drafts = ", ".join(("suffix", *m.drafts))
        installed = "yes" if m.installed else "no"
        table.add_row(m.name, f"{m.size / 1e6:,.0f} MB", m.quantisation, m.licence, installed, drafts, m.description)
    console().print(table)
    if as_json:
        emit_json({"models": [vars(m) | {"path": str(m.path)} for m in found]})
    return 0
