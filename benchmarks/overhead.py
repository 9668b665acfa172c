"""Plain decoding through Slipstream beside a bare loop over llama_decode with argmax, in one process on one context.

    python benchmarks/overhead.py MODEL [--tokens 128] [--rounds 7]

A B A B: the same prompt and number of tokens through each in turn. Asked for: at least 0.97 of the bare loop's speed.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from typing import Any

import numpy as np

from results import save, spread
from slipstream import Engine
from slipstream.hub import resolve
from slipstream.models.llamacpp import library

PROMPT = "A long letter from the lighthouse keeper to his sister:\n\nDear Marta, the winter here"


def bare(model: Any, prompt: list[int], n_tokens: int) -> tuple[float, list[int]]:
    """Tokens per second and ids of the loop that nothing can be left out of."""
    low, ctx = library.lib(), model._ctx
    low.llama_memory_clear(model._mem, False)
    n_vocab = model.caps.n_vocab
    one = (ctypes.c_int32 * 1)()
    first = (ctypes.c_int32 * len(prompt))(*prompt)
    low.llama_decode(ctx, low.llama_batch_get_one(first, len(prompt)))
    ids: list[int] = []
    start = 0.0
    for i in range(n_tokens):
        logits = np.ctypeslib.as_array(low.llama_get_logits_ith(ctx, -1), (n_vocab,))
        ids.append(int(logits.argmax()))
        if i == 0:
            start = time.perf_counter()
        if i + 1 < n_tokens:
            one[0] = ids[-1]
            low.llama_decode(ctx, low.llama_batch_get_one(one, 1))
    speed = (n_tokens - 1) / (time.perf_counter() - start)
    low.llama_memory_clear(model._mem, False)
    return speed, ids


def through(engine: Engine, prompt: list[int], n_tokens: int) -> tuple[float, list[int]]:
    """The same through Engine.stream: wall time from the first token to the last, text and all."""
    ids: list[int] = []
    start = 0.0
    for chunk in engine.stream(prompt, max_tokens=n_tokens, ignore_end=True):
        if chunk.tokens and not ids:
            start = time.perf_counter()
        ids += [t.id for t in chunk.tokens]
    return (n_tokens - 1) / (time.perf_counter() - start), ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with Engine.open(args.model, None, n_ctx=1024) as engine:
        prompt = engine.tokenizer.encode(PROMPT)
        ratios: list[float] = []
        speeds: dict[str, list[float]] = {"bare": [], "slipstream": []}
        same = True
        bare(engine.model, prompt, 16)  # warm up
        for i in range(args.rounds):
            if i % 2:
                mine, ids = through(engine, prompt, args.tokens)
                other, expected = bare(engine.model, prompt, args.tokens)
            else:
                other, expected = bare(engine.model, prompt, args.tokens)
                mine, ids = through(engine, prompt, args.tokens)
            same &= ids == expected
            speeds["bare"].append(other)
            speeds["slipstream"].append(mine)
            ratios.append(mine / other)
    result: dict[str, Any] = {
        "model": args.model,
        "tokens": args.tokens,
        "ratio": spread(ratios),
        **{k: spread(v) for k, v in speeds.items()},
        "ids_identical": same,
    }
    print(f"{result['ratio']['median']:.3f} of the bare loop ({args.model})", file=sys.stderr)
    save(f"overhead-{resolve(args.model).stem[:12].lower()}", result, {"model": resolve(args.model)})


if __name__ == "__main__":
    main()
