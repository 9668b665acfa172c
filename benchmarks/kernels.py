"""What our matrix kernels change: the price of a forward of n tokens with llama.cpp's own kernels and with ours.

    python benchmarks/kernels.py MODEL [--context 200] [--rounds 7] [--threads N] [--out NAME]

Both are measured in one process, in turn, size by size and round by round. `noise` is the largest difference in logits
between a row in a batch of n and the same row alone; `nll` the mean negative log likelihood (nats a token) of a text,
which must not change. Stop other work on the machine first.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import sys
import time
from typing import Any

import numpy as np

from price import TEXT, chain
from results import save, spread
from slipstream import Engine
from slipstream.core.ports import Model
from slipstream.core.types import Array
from slipstream.hub import resolve
from slipstream.hub.cache import cache_dir
from slipstream.models.llamacpp import kernels

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
PROMPT, PIECE = 512, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--context", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--out", default="kernels")
    args = parser.parse_args()
    status = kernels.load(cache_dir() / "kernels")
    if status.path is None:
        raise SystemExit(f"the kernels are not in use: {status.reason}")
    switch = ctypes.c_int.in_dll(ctypes.CDLL(str(status.path)), "slipstream_kernels_on")
    options = {} if args.threads is None else {"threads": args.threads}
    with Engine.open(args.model, None, n_ctx=args.context + PROMPT + 64, flash_attn=True, **options) as engine:
        tokens = engine.tokenizer.encode(TEXT * ((args.context + PROMPT) // 15 + 8))[: args.context + PROMPT]
        table = measure(engine.model, tokens[: args.context], tokens[args.context :], args.rounds, switch)
    for row in table["prices"]:
        print(
            f"T({row['n']:3}) {row['before']['median']:7.1f} -> {row['after']['median']:7.1f} ms  "
            f"{row['before_ratio']:5.2f} -> {row['after_ratio']:5.2f} x  "
            f"noise {row['before_noise']} -> {row['after_noise']}",
            file=sys.stderr,
        )
    save(
        args.out,
        {"model": args.model, "context": args.context, "check": kernels.result(status.path), **table},
        {"model": resolve(args.model)},
    )


def measure(model: Model, past: list[int], new: list[int], rounds: int, switch: ctypes.c_int) -> dict[str, Any]:
    """Times and noise of both kinds of kernels, and the likelihood that each gives to the text."""
    alone: dict[int, list[Array]] = {}
    nll: dict[int, float] = {}
    for on in (0, 1):
        switch.value = on
        model.truncate(0, 0)
        chain(model, past, rows=False)
        alone[on] = [chain(model, [token])[0].copy() for token in new[: max(SIZES)]]
        nll[on] = float(np.mean([surprise(row, token) for row, token in zip(alone[on], new[1:], strict=False)]))
    times: dict[tuple[int, int], list[float]] = {(on, n): [] for on in (0, 1) for n in (*SIZES, PROMPT)}
    noise: dict[tuple[int, int], float | None] = dict.fromkeys(times)
    for on in (0, 1):  # each over the past that its own kernels computed
        switch.value = on
        model.truncate(0, 0)
        chain(model, past, rows=False)
        for n in SIZES:
            model.truncate(0, len(past))
            rows = chain(model, new[:n])
            noise[on, n] = max(float(np.abs(rows[i] - alone[on][i]).max()) for i in range(n))
    for _ in range(rounds):
        for n in (*SIZES, PROMPT):
            for on in (0, 1):
                switch.value = on
                model.truncate(0, len(past))
                start = time.perf_counter()
                for at in range(0, n, PIECE):
                    chain(model, new[at : min(at + PIECE, n)], rows=n < PROMPT)
                times[on, n].append(1000 * (time.perf_counter() - start))
    first = [spread(times[on, 1])["median"] for on in (0, 1)]
    prices = [
        {
            "n": n,
            "before": spread(times[0, n]),
            "after": spread(times[1, n]),
            "before_ratio": spread(times[0, n])["median"] / first[0],
            "after_ratio": spread(times[1, n])["median"] / first[1],
            "before_noise": noise[0, n],
            "after_noise": noise[1, n],
        }
        for n in (*SIZES, PROMPT)
    ]
    return {"prices": prices, "before_nll": nll[0], "after_nll": nll[1]}


def surprise(logits: Array, token: int) -> float:
    """-log of the probability that the logits give to a token, in nats."""
    top = float(logits.max())
    return math.log(float(np.exp(logits.astype(np.float64) - top).sum())) + top - float(logits[token])


if __name__ == "__main__":
    main()
