"""The price of a forward, T(n): milliseconds for n new tokens behind a context, and the noise of a batch.

    python benchmarks/price.py MODEL [--context 200] [--rounds 7] [--out NAME]

Sizes are measured in turn, round by round. `noise` is the largest difference in logits between a row evaluated in a
batch of n and the same row evaluated alone: 0 means that a verified chain is bit for bit what plain decoding computes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from results import save, spread
from slipstream import Engine
from slipstream.core.ports import Model
from slipstream.core.types import Array, Span
from slipstream.hub import resolve

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 48)
TEXT = "The river rose in the night, and by morning the lower fields had become a wide and quiet lake. "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--flash-attn", choices=("on", "off"), default="on")
    parser.add_argument("--out", default="price")
    args = parser.parse_args()
    with Engine.open(args.model, None, n_ctx=args.context + 128, flash_attn=args.flash_attn == "on") as engine:
        model = engine.model
        tokens = engine.tokenizer.encode(TEXT * (args.context // 15 + 8))[: args.context + 64]
        past, new = tokens[: args.context], tokens[args.context :]
        read(model, past)
        alone = []
        for token in new[: max(SIZES)]:
            alone.append(chain(model, [token])[0].copy())
        times: dict[int, list[float]] = {n: [] for n in SIZES}
        noise: dict[int, float] = {}
        for _ in range(args.rounds):
            for n in SIZES:
                model.truncate(0, len(past))
                start_s = time.perf_counter()
                rows = chain(model, new[:n])
                times[n].append(1000 * (time.perf_counter() - start_s))
                noise[n] = max(float(np.abs(rows[i] - alone[i]).max()) for i in range(n))
    table: list[dict[str, Any]] = [
        {
            "n": n,
            "ms": spread(times[n]),
            "ratio": spread(times[n])["median"] / spread(times[1])["median"],
            "noise": noise[n],
        }
        for n in SIZES
    ]
    for row in table:
        print(
            f"T({row['n']:2}) = {row['ms']['median']:7.1f} ms  {row['ratio']:5.2f} x  noise {row['noise']:.3f}",
            file=sys.stderr,
        )
    save(
        args.out,
        {"model": args.model, "context": args.context, "flash_attn": args.flash_attn, "prices": table},
        {"model": resolve(args.model)},
    )


def chain(model: Model, tokens: Sequence[int], rows: bool = True) -> Array:
    """Evaluate and keep new tokens of slot 0; logits of each one, if asked for."""
    n = len(tokens)
    out = model.forward([Span(0, tokens, range(-1, n - 1), range(n) if rows else ())])[0]
    model.keep(0, range(n))
    return out


def read(model: Model, tokens: Sequence[int]) -> None:
    """Make a text what slot 0 holds."""
    model.truncate(0, 0)
    for at in range(0, len(tokens), model.caps.n_batch):
        chain(model, tokens[at : at + model.caps.n_batch], rows=False)


if __name__ == "__main__":
    main()
