"""Recurrent (Mamba) and hybrid (Jamba) models in llama.cpp: rejected tokens leave by a checkpoint, exactly.

The models are tiny and random, but real files through the real library. Their logits spread over 5; a state that still
holds a rejected token is off by far more than the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from slipstream.core.policy import Fixed
from slipstream.core.types import SamplingParams, Span
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.engine import Engine
from slipstream.errors import RollbackError
from slipstream.models.gguf import read_header
from slipstream.models.llamacpp.model import LlamaModel, LlamaOptions
from slipstream.models.toy import ToyTokenizer
from tiny_models import N_VOCAB, jamba, mamba

BOUND = 0.01
TOKENS = [5, 9, 30, 7, 7, 12, 41, 3, 22, 18]


@pytest.fixture(params=[mamba, jamba], ids=["mamba", "jamba"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LlamaModel]:
    make: Callable[[Path], Path] = request.param
    opened = LlamaModel(make(tmp_path / "tiny.gguf"), LlamaOptions(n_ctx=256, n_slots=3, n_batch=64, threads=1))
    yield opened
    opened.close()


def forward(model: LlamaModel, slot: int, tokens: Sequence[int]) -> np.ndarray:
    span = Span(slot, tokens, range(-1, len(tokens) - 1), range(len(tokens)))
    return model.forward([span])[0].copy()


def feed(model: LlamaModel, slot: int, tokens: Sequence[int]) -> np.ndarray:
    rows = []
    for token in tokens:
        rows.append(forward(model, slot, [token])[0])
        model.keep(slot, [0])
    return np.stack(rows)


def test_the_header_says_so(tmp_path: Path) -> None:
    assert read_header(mamba(tmp_path / "m.gguf")).is_recurrent
    assert read_header(jamba(tmp_path / "j.gguf")).is_hybrid


def test_capabilities(model: LlamaModel) -> None:
    assert model.caps.rollback == "checkpoint"
    assert not model.caps.trees


@pytest.mark.parametrize("kept", [0, 1, 2, 3, 4])
def test_rejected_tokens_leave_no_trace(model: LlamaModel, kept: int) -> None:
    right = feed(model, 2, TOKENS)
    feed(model, 0, TOKENS[:4])
    draft = TOKENS[4 : 4 + kept] + [60] * (4 - kept)
    rows = forward(model, 0, draft)
    assert np.abs(rows[:kept] - right[4 : 4 + kept]).max(initial=0) < BOUND
    model.keep(0, range(kept))
    assert model.n_past(0) == 4 + kept
    assert np.abs(feed(model, 0, TOKENS[4 + kept :]) - right[4 + kept :]).max() < BOUND


def test_two_slots_are_rolled_back_apart(model: LlamaModel) -> None:
    right = feed(model, 2, TOKENS)
    feed(model, 0, TOKENS[:3])
    feed(model, 1, TOKENS[:5])
    model.forward(
        [Span(0, [TOKENS[3], 60, 61], [-1, 0, 1], range(3)), Span(1, [*TOKENS[5:7], 62], [-1, 0, 1], range(3))]
    )
    model.keep(0, [0])
    model.keep(1, [0, 1])
    assert np.abs(feed(model, 0, TOKENS[4:]) - right[4:]).max() < BOUND
    assert np.abs(feed(model, 1, TOKENS[7:]) - right[7:]).max() < BOUND


def test_it_cannot_be_cut_in_the_middle(model: LlamaModel) -> None:
    feed(model, 0, TOKENS)
    with pytest.raises(RollbackError):
        model.truncate(0, 3)
    model.truncate(0, 0)
    assert np.abs(feed(model, 0, TOKENS) - feed(model, 2, TOKENS)).max() < BOUND


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_text_is_the_same_with_and_without_drafts(model: LlamaModel, temperature: float) -> None:
    tokenizer = ToyTokenizer([bytes([32 + i]) for i in range(N_VOCAB)])
    engine = Engine(model, tokenizer, SuffixDrafter(1), Fixed(4))
    sampling = SamplingParams(temperature=temperature, seed=3)
    plain = engine.generate(TOKENS, max_tokens=60, speculative=False, sampling=sampling)
    drafted = engine.generate(TOKENS, max_tokens=60, sampling=sampling)
    assert drafted.stats.verified > drafted.stats.accepted > 0
    assert drafted.ids == plain.ids
