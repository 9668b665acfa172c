"""`slipstream doctor`: what this machine and this build offer, and whether the native code works here."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from slipstream.cli.common import Downloads, console, emit_json, say
from slipstream.cli.options import Json
from slipstream.errors import BuildError

EPILOG = "Example: slipstream doctor\n\nExample: slipstream doctor --no-probe --json"
MODEL = "smollm2-135m"


def command(
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help=f"Try small forwards of {MODEL} in a child process.")
    ] = True,
    as_json: Json = False,
) -> int:
    """Describe machine, versions and the build of llama.cpp, and try it in a child process. Exit code 1: it fails."""
    from slipstream.advise.provenance import machine, versions

    facts: dict[str, Any] = {"machine": machine(), "versions": versions(), "cache": _cache()}
    facts["build"] = _build()
    facts["probe"] = _probe() if probe and facts["build"]["ok"] else None
    bad = [part for part in (facts["build"], facts["probe"]) if part is not None and not part["ok"]]
    _print(facts)
    for part in bad:
        say(f"error: {part['message']}")
        say(f"hint: {part['fix']}")
    if as_json:
        emit_json(facts | {"ok": not bad})
    return 1 if bad else 0


def _build() -> dict[str, Any]:
    from slipstream.models.llamacpp import library

    try:
        own = library.own_kernels()
        facts = {"id": library.build_id(), "system_info": library.system_info(), "gpus": library.gpus()}
        return {"ok": True, **facts, "kernels": {"active": own.active, "reason": own.reason}}
    except BuildError as e:
        return {"ok": False, "message": e.message, "fix": e.hint}
    except ImportError as e:
        return {"ok": False, "message": f"llama-cpp-python cannot be imported: {e}", "fix": library.FIX}


def _probe() -> dict[str, Any]:
    """Milliseconds of small forwards and how rows round; with `fix` when the child failed."""
    from slipstream.hub import resolve
    from slipstream.models.llamacpp import library
    from slipstream.models.llamacpp import probe as child

    with Downloads() as progress:
        path = resolve(MODEL, progress=progress)
    answer = child.run(path, noise=True)
    return answer if answer["ok"] else answer | {"fix": library.FIX}


def _cache() -> dict[str, Any]:
    from slipstream.hub import cache_dir

    folder = cache_dir()
    there: Path = next(p for p in (folder, *folder.parents) if p.exists())
    return {"folder": str(folder), "free": shutil.disk_usage(there).free}


def _rounding(noise: dict[str, float]) -> str:
    """For this one model; others may have weights that are multiplied otherwise."""
    words = {"chain": "in a chain", "tree": "in a tree", "beside": "beside another request"}
    if not any(noise.values()):
        parts = ", ".join(words[name] for name in noise)
        return f"{parts}: logits of {MODEL} are bit for bit those of one token at a time"
    parts = ", ".join(f"{words[name]} {most:.2g}" if most else f"{words[name]} none" for name, most in noise.items())
    return f"logits of {MODEL} differ from one token at a time by up to: {parts} (see docs/ties.md)"


def _print(facts: dict[str, Any]) -> None:
    machine, build, probe = facts["machine"], facts["build"], facts["probe"]
    lines = [
        ("cpu", f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads"),
        ("instructions", " ".join(machine["flags"]) or "none that matter"),
        ("memory", f"{machine['memory'] / 2**30:.1f} GiB"),
        ("system", f"{machine['system']}, Python {machine['python']}"),
        ("versions", ", ".join(f"{name} {v}" for name, v in facts["versions"].items())),
        ("cache", f"{facts['cache']['folder']}, {facts['cache']['free'] / 1e9:.1f} GB free"),
    ]
    if build["ok"]:
        features = [part.strip() for part in build["system_info"].split("|") if "= 1" in part]
        lines.append(("build", f"{build['id']}: {', '.join(f.split(' = ')[0] for f in features)}"))
        own = build["kernels"]
        lines.append(("own kernels", f"{'in use' if own['active'] else 'not in use'}: {own['reason']}"))
        gpus = ", ".join(f"{name} ({free / 2**30:.1f} GiB free)" for name, free in build["gpus"])
        lines.append(("GPUs", gpus or "none that this build can use"))
    else:
        lines.append(("build", "FAILS"))
    if probe is not None:
        times = ", ".join(f"{n}: {ms} ms" for n, ms in probe["ms"].items())
        lines.append(("forward of", f"{times} tokens" if probe["ok"] else f"FAILS {times}".strip()))
        if "noise" in probe:
            lines.append(("rounding", _rounding(probe["noise"])))
    table = Table.grid(padding=(0, 2))
    for name, text in lines:
        table.add_row(name, text)
    console().print(table)
