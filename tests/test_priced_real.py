"""The priced policy on real models: the text is plain's own, whoever drafts, and the statistics say who did."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import assert_own
from slipstream import Engine, SamplingParams
from slipstream.advise.compare import compare
from slipstream.core.priced import Priced

PROMPTS = (
    "Write a JSON array of six cities with the fields name, country and population.",
    "List the days of the week, then list them again in the same order.",
    "Why is the sky blue? Answer in two sentences.",
)


def check(engine: Engine, prompt: str, temperature: float, max_tokens: int) -> int:
    """Both ways; how many drafted tokens were verified."""
    ids = engine.encode_chat([{"role": "user", "content": prompt}])
    params = SamplingParams(temperature=temperature, seed=3)
    plain = engine.generate(ids, sampling=params, max_tokens=max_tokens, speculative=False)
    spec = engine.generate(ids, sampling=params, max_tokens=max_tokens)
    found = compare(engine, ids, params, plain.ids, spec.ids)
    assert_own(found)
    assert plain.stats.verified == 0 and set(spec.drafters) <= {d.name for d in engine.drafters}
    return spec.stats.verified


def test_mixed_drafters_on_the_embedded_model(smollm2: Path) -> None:
    with Engine.open(str(smollm2), f"suffix,recycle,{smollm2}", n_ctx=512) as engine:
        assert isinstance(engine.policy, Priced) and len(engine.drafters) == 3
        verified = [check(engine, p, t, 40) for p in PROMPTS for t in (0.0, 0.8)]
        assert sum(verified) > 0, "the target as its own drafter is right nearly always"
        assert set(engine.status["drafters"]) == {"suffix", "recycle", "model"}


@pytest.mark.large
def test_the_pair_with_a_draft_model_and_without() -> None:
    for draft in ("suffix", "suffix,qwen2.5-coder-0.5b"):
        with Engine.open("qwen2.5-coder-1.5b", draft, n_ctx=1024) as engine:
            assert sum(check(engine, p, 0.0, 48) for p in PROMPTS) > 0
