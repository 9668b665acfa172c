"""What a step costs beside the models: microseconds of drafting and of verification, and where they go.

    python benchmarks/hot_path.py MODEL [--draft suffix] [--tokens 160] [--note TEXT]

Drafters that need no model only (a draft model's forwards would be counted as drafting). The profile is of one further
run, under cProfile, which makes everything slower; shares are what it is for.
"""

from __future__ import annotations

import argparse
import cProfile
import io
import pstats
import statistics
from pathlib import Path
from typing import Any

import slipstream
from results import prompts, save
from slipstream import Engine
from slipstream.core.types import StepRecord
from slipstream.hub import resolve

HERE = Path(__file__).parent
LINES = 25


def records(engine: Engine, n_tokens: int, n_prompts: int) -> list[StepRecord]:
    """Steps of decoding over prompts of different kinds."""
    out: list[StepRecord] = []
    for line in prompts(HERE / "prompts-parity.jsonl", n_prompts):
        ids = engine.encode_chat([{"role": "user", "content": line["prompt"]}])
        for chunk in engine.stream(ids, max_tokens=n_tokens):
            if chunk.record is not None and not chunk.record.prefilled:
                out.append(chunk.record)
    return out


def microseconds(steps: list[StepRecord]) -> dict[str, Any]:
    """Medians and 95th percentiles of drafting, verification, and both; of all steps and of those with a draft."""
    parts: dict[str, Any] = {"steps": len(steps), "forward_ms": 1e3 * statistics.median(s.forward_s for s in steps)}
    ways = {
        "draft": [1e6 * s.draft_s for s in steps],
        "verify": [1e6 * s.verify_s for s in steps],
        "both": [1e6 * (s.draft_s + s.verify_s) for s in steps],
        "both, with a draft": [1e6 * (s.draft_s + s.verify_s) for s in steps if s.verified],
    }
    for name, values in ways.items():
        if len(values) > 1:
            parts[name] = {"median": statistics.median(values), "p95": statistics.quantiles(values, n=20)[-1]}
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--draft", default="suffix")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--note", default="")
    args = parser.parse_args()
    with Engine.open(args.model, args.draft, n_ctx=1024) as engine:
        records(engine, 16, 1)  # warm up
        result = microseconds(records(engine, args.tokens, args.prompts))
        profile = cProfile.Profile()
        profile.enable()
        records(engine, args.tokens, args.prompts)
        profile.disable()
    text = io.StringIO()
    pstats.Stats(profile, stream=text).sort_stats("tottime").print_stats("slipstream|numpy", LINES)
    root = str(Path(slipstream.__file__).parents[2])
    lines = [line.replace(root, "") for line in text.getvalue().splitlines() if line.strip()]
    result |= {"model": args.model, "draft": args.draft, "tokens": args.tokens, "note": args.note, "profile": lines}
    save("hot-path" + (f"-{args.note}" if args.note else ""), result, {"target": resolve(args.model)})


if __name__ == "__main__":
    main()
