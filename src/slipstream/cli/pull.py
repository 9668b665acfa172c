"""`slipstream pull`: fetch a model."""

from __future__ import annotations

from typing import Annotated

import typer

from slipstream.cli.common import Downloads, emit_json, say
from slipstream.cli.options import Json

EPILOG = "Example: slipstream pull smollm2-135m"


def command(
    name: Annotated[str, typer.Argument(help="A name that `slipstream models` lists, or hf:owner/repo/file.gguf.")],
    as_json: Json = False,
) -> int:
    """Fetch a model and check its sha256; one that is here already is only checked. An interrupted pull goes on."""
    from slipstream import hub

    with Downloads() as progress:
        path = hub.resolve(name, progress=progress)
    say(f"{name} is here and checked")
    if as_json:
        emit_json({"name": name, "path": str(path), "size": path.stat().st_size})
    else:
        print(path)
    return 0
