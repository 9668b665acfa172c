"""Is the promise kept? The same text as plain decoding, and for the sampling verifiers the same distribution.

Greedy and exact sampling are compared token by token: a difference passes only at a near-tie. For rejection and block
verification the token after a fixed prompt is drawn with many seeds and compared with the probabilities that plain
decoding has there (Pearson's chi-square; rare tokens are pooled until 5 of them are expected).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slipstream.advise.compare import next_row
from slipstream.advise.measure import Work, pair, run, sample
from slipstream.core.sampling import Probs, Sampler
from slipstream.core.types import Array, SamplingParams
from slipstream.core.verify import LOSSY
from slipstream.engine import Engine
from slipstream.generation import Chunk, Request

FALSE_ALARM = 0.001  # of all chi-square tests of one audit together
LEAST_EXPECTED = 5.0
TEMPERATURE = 0.8
# Phrases that come again, so that drafters which copy from the prompt have something to say.
FIXED_PROMPT = "One red cup, one blue cup, one red cup, one blue cup, one red"


@dataclass(frozen=True)
class Check:
    """One result. `passed` is None when there was nothing to test, for example because nothing was drafted."""

    name: str
    passed: bool | None
    detail: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "passed": self.passed, "detail": self.detail, **self.facts}


def same_text(
    engine: Engine,
    works: Sequence[Work],
    max_tokens: int,
    temperature: float,
    stopped: Callable[[], bool] = lambda: False,
) -> Check:
    """Token ids with and without drafting, for every prompt; seeds differ from prompt to prompt."""
    name = "greedy text" if temperature == 0 else f"same seed, same text (temperature {temperature:g})"
    found, verified = [], 0
    for i, work in enumerate(works):
        params = SamplingParams(temperature=temperature, seed=i)
        request = work.request(engine, max_tokens=max_tokens, sampling=params, verify="exact")
        both = pair(engine, request, True, stopped)
        if both is None:
            break
        verified += both.spec.stats.verified
        comparison = sample(engine, work.kind, request, [both]).comparison
        if comparison is not None:
            found.append({"prompt": i + 1, **comparison.as_dict()})
    counts = Counter(f["verdict"] for f in found)
    detail = f"{counts['identical']} of {len(found)} identical, {counts['near tie']} near ties"
    detail += f", {counts['mismatch']} WRONG" if counts["mismatch"] else ""
    detail += f"; {verified} drafted tokens verified"
    differing = [f for f in found if f["verdict"] != "identical"]
    passed = None if not verified or not found else not counts["mismatch"]
    return Check(name, passed, detail, {"differences": differing, "prompts": len(found), "verified": verified})


def distribution(
    engine: Engine,
    verify: str,
    n: int,
    level: float,
    stopped: Callable[[], bool] = lambda: False,
    text: str = FIXED_PROMPT,
) -> Iterator[Check]:
    """Chi-square tests of the first and the second drafted position, each at `level`. The prompt stays in the cache
    but for its last token, so that its first new token is drafted already."""
    prompt = engine.tokenizer.encode(text)
    params = SamplingParams(temperature=even_temperature(next_row(engine, prompt)))
    draws, verified = _draws(engine, verify, prompt, params, n, stopped)
    if not verified or len(draws) < n:
        yield Check(f"{verify}: distribution", None, "stopped" if len(draws) < n else "the drafter proposed nothing")
        return
    p = probabilities(engine, prompt, (), params)
    judge = _distance if verify in LOSSY else _check
    yield judge(f"{verify}: first token", [d[0] for d in draws if d], p, level, verified)
    common = Counter(d[0] for d in draws if d).most_common(1)[0][0]
    p = probabilities(engine, prompt, (common,), params)
    seconds = [d[1] for d in draws if len(d) > 1 and d[0] == common]
    yield judge(f"{verify}: second token", seconds, p, level, verified)


def _draws(
    engine: Engine, verify: str, prompt: Sequence[int], params: SamplingParams, n: int, stopped: Callable[[], bool]
) -> tuple[list[tuple[int, ...]], int]:
    """The first two tokens for `n` seeds, and how many drafted tokens were verified in the steps that began them."""
    draws, verified = [], 0
    for seed in range(-1, n):  # the first one fills the cache
        request = Request(
            prompt,
            max_tokens=3,  # two can be drafted
            sampling=replace(params, seed=max(seed, 0)),
            verify=verify,
            reuse_cache=True,
            ignore_end=True,
        )
        chunks: list[Chunk] = []
        result = run(engine, request, chunks.append, stopped)
        if result.finish_reason == "cancelled":
            break
        if seed >= 0:
            draws.append(result.ids[:2])
            first = chunks[0].record
            verified += first.verified if first else 0
    return draws, verified


def even_temperature(row: Array) -> float:
    """The temperature at which the likeliest token has one half of the probability: a test needs both outcomes."""
    low, high = 0.05, 20.0
    for _ in range(30):
        middle = (low * high) ** 0.5
        peaked = Sampler(SamplingParams(temperature=middle)).filtered(row).probs().max() > 0.5
        low, high = (middle, high) if peaked else (low, middle)
    return low


def probabilities(engine: Engine, prompt: Sequence[int], output: Sequence[int], params: SamplingParams) -> Probs:
    """What plain decoding draws the next token from, shape (n_vocab,)."""
    row = next_row(engine, prompt, output)
    return Sampler(params, prompt).filtered(row).dense(row.size)


def _check(name: str, tokens: Sequence[int], p: Probs, level: float, verified: int) -> Check:
    statistic, cells, value = chi_square(tokens, p)
    if cells < 2:
        return Check(name, None, f"too few draws ({len(tokens)}) to test", {"draws": len(tokens)})
    detail = f"p-value {value:.3g} from {len(tokens)} draws in {cells} cells (fails below {level:.2g})"
    facts = {"p_value": value, "chi_square": statistic, "cells": cells, "draws": len(tokens), "verified": verified}
    return Check(name, value >= level, detail, facts)


def _distance(name: str, tokens: Sequence[int], p: Probs, level: float, verified: int) -> Check:
    """A lossy verifier is not tested; how far it is from the target is said."""
    if not tokens:
        return Check(name, None, "no draws")
    share = np.bincount(np.asarray(tokens, np.int64), minlength=p.size) / len(tokens)
    far = float(np.abs(share - p).sum() / 2)
    exact = np.random.default_rng(0).choice(p.size, (20, len(tokens)), p=p / p.sum())
    by_chance = float(np.mean([np.abs(np.bincount(e, minlength=p.size) / e.size - p).sum() / 2 for e in exact]))
    detail = f"lossy: total variation distance {far:.3f} from the target over {len(tokens)} draws"
    facts = {"distance": far, "distance_by_chance": by_chance, "draws": len(tokens), "verified": verified}
    return Check(name, None, f"{detail} (chance alone gives {by_chance:.3f})", facts)


def chi_square(tokens: Sequence[int], p: Probs) -> tuple[float, int, float]:
    """Statistic, number of cells and p-value of draws against `p`; rare tokens share a cell."""
    from scipy.stats import chi2

    n = len(tokens)
    observed = np.bincount(np.asarray(tokens, np.int64), minlength=p.size).astype(float)
    if observed[p <= 0].any():  # a token that plain decoding could never give
        return float("inf"), p.size, 0.0
    order = np.argsort(-p, kind="stable")
    expected, observed = n * p[order], observed[order]
    own = int(np.searchsorted(-expected, -LEAST_EXPECTED, side="right"))
    while own and expected[own:].sum() < LEAST_EXPECTED:  # the pooled rest needs enough as well
        own -= 1
    e = np.append(expected[:own], expected[own:].sum())
    o = np.append(observed[:own], observed[own:].sum())
    statistic = float(((o - e) ** 2 / np.maximum(e, 1e-300)).sum())
    return statistic, len(e), float(chi2.sf(statistic, len(e) - 1)) if len(e) > 1 else 1.0
