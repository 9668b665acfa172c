"""What our matrix kernels change: the price of a forward of n tokens with llama.cpp's own kernels and with ours.

    python benchmarks/kernels.py MODEL [--context 200] [--rounds 7] [--threads N] [--out NAME]

The model is opened twice in one process, with and without them (they also decide how weights lie in memory), and
measured in turn, size by size and round by round. `noise` is the largest difference in logits between a row in a batch
of n and the same row alone; `nll` the mean negative log likelihood (nats a token) of a text of many kinds, which must
not change. Stop other work on the machine first.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from price import TEXT, chain, read
from results import save, spread
from slipstream import Engine
from slipstream.core.ports import Model
from slipstream.core.types import Array
from slipstream.hub import resolve
from slipstream.hub.cache import cache_dir
from slipstream.models.llamacpp import kernels

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
PROMPT, PIECE = 512, 256
READ = 1500  # tokens of text whose likelihood is compared


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
    n_ctx = max(args.context + PROMPT + 64, READ)
    with ExitStack() as stack:
        engines = []
        for on in (0, 1):
            switch.value = on
            opened = Engine.open(args.model, None, n_ctx=n_ctx, flash_attn=True, **options)
            engines.append(stack.enter_context(opened))
        encode, models = engines[0].tokenizer.encode, [e.model for e in engines]
        tokens = encode(TEXT * ((args.context + PROMPT) // 15 + 8))[: args.context + PROMPT]
        table = measure(models, tokens[: args.context], tokens[args.context :], args.rounds, switch)
        table |= likelihoods(models, encode(text())[:READ], switch)
    print(
        f"nll {table['before_nll']:.4f} -> {table['after_nll']:.4f} over {table['nll_tokens']} tokens, "
        f"same choice {100 * table['same_choice']:.1f} %",
        file=sys.stderr,
    )
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


def text() -> str:
    """The prompts of the parity benchmark, one after the other: prose, code, lists, several scripts."""
    lines = (Path(__file__).parent / "prompts-parity.jsonl").read_text(encoding="utf-8").splitlines()
    return "\n\n".join(str(json.loads(line)["prompt"]) for line in lines)


def likelihoods(models: Sequence[Model], tokens: list[int], switch: ctypes.c_int) -> dict[str, Any]:
    """What each kind of kernels makes of the same text, read 16 tokens at a time, and how often they choose alike."""
    nll: list[float] = []
    best: list[list[int]] = []
    for on, model in enumerate(models):
        switch.value = on
        model.truncate(0, 0)
        losses, picks = [], []
        for at in range(0, len(tokens) - 1, 16):
            piece = tokens[at : min(at + 16, len(tokens) - 1)]
            for row, said in zip(chain(model, piece), tokens[at + 1 :], strict=False):
                losses.append(surprise(row, said))
                picks.append(int(row.argmax()))
        nll.append(float(np.mean(losses)))
        best.append(picks)
    alike = float(np.mean(np.array(best[0]) == np.array(best[1])))
    return {"nll_tokens": len(best[0]), "before_nll": nll[0], "after_nll": nll[1], "same_choice": alike}


def measure(
    models: Sequence[Model], past: list[int], new: list[int], rounds: int, switch: ctypes.c_int
) -> dict[str, Any]:
    """Times and noise of both kinds of kernels."""
    alone: dict[int, list[Array]] = {}
    for on, model in enumerate(models):
        switch.value = on
        read(model, past)
        alone[on] = [chain(model, [token])[0].copy() for token in new[: max(SIZES)]]
    times: dict[tuple[int, int], list[float]] = {(on, n): [] for on in (0, 1) for n in (*SIZES, PROMPT)}
    noise: dict[tuple[int, int], float | None] = dict.fromkeys(times)
    for on, model in enumerate(models):  # each over the past that its own kernels computed
        switch.value = on
        for n in SIZES:
            model.truncate(0, len(past))
            rows = chain(model, new[:n])
            noise[on, n] = max(float(np.abs(rows[i] - alone[on][i]).max()) for i in range(n))
    for _ in range(rounds):
        for n in (*SIZES, PROMPT):
            for on, model in enumerate(models):
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
    return {"prices": prices}


def surprise(logits: Array, token: int) -> float:
    """-log of the probability that the logits give to a token, in nats."""
    top = float(logits.max())
    return math.log(float(np.exp(logits.astype(np.float64) - top).sum())) + top - float(logits[token])


if __name__ == "__main__":
    main()
