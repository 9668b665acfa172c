"""Does the tie guard earn its place? 60 prompts, greedy: identical texts, and time, with it and without.

    python benchmarks/tie_guard.py TARGET [--draft suffix] [--k 8] [--bounds 0.1 0.3 0.6] [--prompts 60] [--tokens 96]

For each prompt: plain, then speculative without a guard and with each bound, in turn. A guarded place is a verified row
whose best two tokens lie within the bound: it is evaluated again alone, as plain decoding does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from results import prompts, save
from slipstream import Engine
from slipstream.hub import resolve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--draft", default="suffix")
    parser.add_argument("--k", type=int, default=8)
    parser.add_argument("--bounds", type=float, nargs="*", default=[0.1, 0.3, 0.6])
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=96)
    args = parser.parse_args()
    works = prompts(Path(__file__).parent / "prompts-parity.jsonl", args.prompts)
    rows: dict[float, dict[str, Any]] = {
        bound: {"identical": 0, "guarded": 0, "seconds": 0.0, "tokens": 0} for bound in (0.0, *args.bounds)
    }
    plain_s = 0.0
    with Engine.open(args.target, args.draft, n_ctx=1024, k=args.k) as engine:
        for i, work in enumerate(works):
            request = {"messages": [{"role": "user", "content": work["prompt"]}], "max_tokens": args.tokens}
            plain = engine.generate(speculative=False, **request)
            plain_s += plain.stats.decode_s
            order = list(rows) if i % 2 else list(rows)[::-1]
            for bound in order:
                engine._loop.tie_guard = bound
                r = engine.generate(**request)
                rows[bound]["identical"] += r.ids == plain.ids
                rows[bound]["guarded"] += r.stats.guarded
                rows[bound]["seconds"] += r.stats.decode_s
                rows[bound]["tokens"] += len(r.ids)
            print(i + 1, {b: row["identical"] for b, row in rows.items()}, file=sys.stderr, flush=True)
    result = {
        "target": args.target,
        "draft": args.draft,
        "k": args.k,
        "prompts": len(works),
        "plain_seconds": plain_s,
        "rows": [{"bound": bound, **row} for bound, row in rows.items()],
    }
    save(f"tie-guard-{resolve(args.target).stem[:12].lower()}", result, {"target": resolve(args.target)})


if __name__ == "__main__":
    main()
