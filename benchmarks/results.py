"""What the benchmark scripts share: a quiet engine, and a dated JSON with where it came from."""

from __future__ import annotations

import datetime
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.advise.provenance import provenance

FOLDER = Path(__file__).parent / "results"


def save(name: str, result: dict[str, Any], models: Mapping[str, Path]) -> None:
    """Write results/NAME-DATE.json, and print the result as the last line of stdout."""
    result = {**result, "provenance": provenance(dict(models))}
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}-{datetime.date.today().isoformat()}.json"
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(f"wrote {path.relative_to(FOLDER.parent.parent)}", file=sys.stderr)
    print(json.dumps(result, ensure_ascii=False))


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median with the lowest and highest value."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def prompts(path: Path, n: int | None = None) -> list[dict[str, str]]:
    """Lines of a prompts file: {"kind": …, "prompt": …}."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return lines[:n]
