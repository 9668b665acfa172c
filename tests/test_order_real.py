"""Real models in several slots: whatever else is in the cache, a row has the bits of the same text alone."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import why_bits_differ
from slipstream.core.cut import cut
from slipstream.core.types import Array, Span
from slipstream.errors import RollbackError
from slipstream.hub import resolve
from slipstream.models.llamacpp.model import LlamaModel, LlamaOptions

STARTS = (30, 480, 540)  # of what is compared; around 512 cells, and Gemma's window
LENGTH, N_CTX, WORDS = 90, 768, 30_000


def read(model: LlamaModel, slot: int, tokens: list[int], piece: int) -> None:
    for at in range(0, len(tokens), piece):
        some = tokens[at : at + piece]
        model.forward([Span(slot, some, range(-1, len(some) - 1), ())])
        model.keep(slot, range(len(some)))


@dataclass
class Alone:
    """Texts of random tokens, and their rows one token at a time in a context of their own."""

    path: Path
    texts: list[list[int]] = field(default_factory=list)
    rows: dict[tuple[int, int], Array] = field(default_factory=dict)


@pytest.fixture(
    scope="module",
    params=[
        "smollm2-135m",
        pytest.param("gemma-3-270m", marks=pytest.mark.large),
        pytest.param("qwen2.5-coder-0.5b", marks=pytest.mark.large),
    ],
)
def alone(request: pytest.FixtureRequest) -> Alone:
    if why := why_bits_differ():
        pytest.skip(why)
    rng = np.random.default_rng(5)
    found = Alone(resolve(request.param))
    model = LlamaModel(found.path, LlamaOptions(n_ctx=N_CTX))
    for i, start in enumerate(STARTS):
        text = [int(t) for t in rng.integers(100, WORDS, start + LENGTH)]
        model.truncate(0, 0)
        read(model, 0, text[:start], 512)
        for at in range(start, len(text)):
            found.rows[i, at] = model.forward([Span(0, [text[at]], [-1], [0])])[0][0].copy()
            model.keep(0, [0])
        found.texts.append(text)
    model.close()
    return found


@dataclass
class Walk:
    """Steps of random slots with chains and trees, rejections, cuts, and states that are put aside and come back."""

    alone: Alone
    model: LlamaModel
    rng: random.Random
    at: list[int] = field(default_factory=lambda: list(STARTS))
    compared: int = 0
    moved: int = 0
    refused: int = 0

    def step(self, slots: Sequence[int] = range(len(STARTS))) -> None:
        spans, paths = [], []
        for slot in slots:
            true = self.alone.texts[slot][self.at[slot] :][: self.rng.randint(1, 5)]
            if true and self.rng.random() < 0.8:
                span, path = self.tree(slot, true)
                spans.append(span)
                paths.append(path)
        if not spans:
            return
        rows = self.model.forward(spans)
        for span, path, got in zip(spans, paths, rows, strict=True):
            for depth, node in enumerate(path):
                at = self.at[span.slot] + depth
                assert np.array_equal(got[node], self.alone.rows[span.slot, at]), (span.slot, at, depth)
                self.compared += 1
        for span, path in zip(spans, paths, strict=True):
            n = self.rng.randint(1, len(path))
            self.model.keep(span.slot, path[:n])
            self.at[span.slot] += n

    def tree(self, slot: int, true: list[int]) -> tuple[Span, list[int]]:
        """The true tokens among others, which as often as not come first."""
        tokens, parents, path = [true[0]], [-1], [0]
        for token in true[1:]:
            for _ in range(self.rng.randint(0, 2)):
                tokens.append(self.rng.randint(100, WORDS))
                parents.append(self.rng.choice([path[-1], len(tokens) - 2]))
            tokens.append(token)
            parents.append(path[-1])
            path.append(len(tokens) - 1)
        return Span(slot, tokens, parents, range(len(tokens))), path

    def go_back(self) -> None:
        slot = self.rng.randrange(len(STARTS))
        n = max(STARTS[slot], self.at[slot] - self.rng.randint(1, 40))
        if n < self.at[slot] and cut(self.model, slot, n) != n:  # a window that has been lost: read again
            self.refused += 1
            read(self.model, slot, self.alone.texts[slot][:n], 100)
        self.at[slot] = n

    def move(self) -> None:
        """A state is put aside, others use its cells, and it comes back; or two of them change places and back."""
        slot, other = self.rng.sample(range(len(STARTS)), 2)
        state = self.model.save(slot)
        if self.rng.random() < 0.5:
            before = self.model.save(other)
            self.model.load(other, state)
            state = self.model.save(other)
            self.model.load(other, before)
        read(self.model, slot, [self.rng.randint(100, WORDS) for _ in range(self.rng.randint(1, 60))], 64)
        self.model.load(slot, state)
        self.moved += 1

    def begin_again(self) -> None:
        """A slot's cells are free for everybody until it has read its text again."""
        slot = self.rng.randrange(len(STARTS))
        self.model.truncate(slot, 0)
        self.step([s for s in range(len(STARTS)) if s != slot])
        read(self.model, slot, self.alone.texts[slot][: self.at[slot]], self.rng.choice([33, 100, 512]))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_row_has_the_bits_that_it_has_alone(alone: Alone, seed: int) -> None:
    model = LlamaModel(alone.path, LlamaOptions(n_ctx=N_CTX, n_slots=len(STARTS)))
    walk = Walk(alone, model, random.Random(seed))
    try:
        for slot, start in enumerate(STARTS):
            read(model, slot, alone.texts[slot][:start], walk.rng.choice([33, 64, 100, 512]))
        for _ in range(40):
            walk.step()
            if walk.rng.random() < 0.3:
                walk.go_back()
            if walk.rng.random() < 0.2:
                walk.move()
            if walk.rng.random() < 0.1:
                walk.begin_again()
    finally:
        model.close()
    assert walk.compared > 150 and walk.moved > 2
    assert (walk.refused > 0) == ("gemma" in alone.path.name), "windows are lost, and nothing else"


def test_a_state_without_what_lies_before_its_window_cannot_be_cut(alone: Alone) -> None:
    """llama.cpp saves of a windowed layer only what the last token sees: a shorter past would lack some of it."""
    model = LlamaModel(alone.path, LlamaOptions(n_ctx=N_CTX))
    windowed = "gemma" in alone.path.name
    try:
        for slot, fits in ((1, True), (2, not windowed)):
            text = alone.texts[slot][: STARTS[slot] + 20]
            model.truncate(0, 0)
            read(model, 0, text, 512)
            model.load(0, model.save(0))
            n = STARTS[slot] + 5
            if not fits:
                with pytest.raises(RollbackError):
                    model.truncate(0, n)
            assert cut(model, 0, n) == (n if fits else 0)
            if fits:
                row = model.forward([Span(0, [text[n]], [-1], [0])])[0][0]
                assert np.array_equal(row, alone.rows[slot, n])
                model.keep(0, [0])
    finally:
        model.close()


@pytest.mark.large
def test_without_our_kernels_a_window_is_cut_only_where_nothing_can_be_lost() -> None:
    """There it is not known which cells have been given away."""
    for n_slots in (1, 2):
        model = LlamaModel(resolve("gemma-3-270m"), LlamaOptions(n_ctx=N_CTX, n_slots=n_slots))
        model._order = None
        try:
            for n in (599, 560):
                model.truncate(0, 0)
                read(model, 0, list(range(1000, 1600)), 300)
                assert cut(model, 0, n) == (n if n_slots == 1 else 0)
            model.truncate(0, 0)
            read(model, 0, list(range(1000, 1600)), 300)
            model.load(0, model.save(0))
            assert cut(model, 0, 560) == 0
            read(model, 0, list(range(1000, 1400)), 400)
            assert cut(model, 0, 200) == 200
        finally:
            model.close()


def lost_to_another(model: LlamaModel, text: list[int]) -> None:
    """Slot 0 holds 600 tokens of `text`, and slot 1 has been given cells that they do not see any more."""
    other = list(range(1000, 1600))
    read(model, 1, other[:500], 500)
    read(model, 0, text[:600], 512)
    model.truncate(1, 0)
    read(model, 1, other, 500)


@pytest.mark.large
@pytest.mark.parametrize("flash_attn", [True, False])
def test_a_window_that_another_slot_has_taken_is_not_cut_into(flash_attn: bool) -> None:
    """Whatever the slot itself has done since, and after its state has moved."""
    text = [int(t) for t in np.random.default_rng(1).integers(100, WORDS, 640)]
    options = LlamaOptions(n_ctx=N_CTX, n_slots=2, flash_attn=flash_attn)
    model = LlamaModel(resolve("gemma-3-270m"), options)
    try:
        for n in (560, 599):
            lost_to_another(model, text)
            assert cut(model, 0, n) == 0
            model.truncate(1, 0)
        lost_to_another(model, text)
        model.load(0, model.save(0))
        read(model, 0, text[600:602], 1)
        assert cut(model, 0, 590) == 0
    finally:
        model.close()


class Interrupted:
    """llama.cpp, but for an interrupt right after a forward."""

    def __init__(self, low: Any) -> None:
        self._low = low

    def __getattr__(self, name: str) -> Any:
        return getattr(self._low, name)

    def llama_decode(self, *args: Any) -> None:
        self._low.llama_decode(*args)
        raise KeyboardInterrupt


@pytest.mark.large
def test_an_interrupt_right_after_a_forward_loses_no_knowledge_of_what_it_wrote() -> None:
    model = LlamaModel(resolve("gemma-3-270m"), LlamaOptions(n_ctx=N_CTX, n_slots=2))
    low, other = model._low, list(range(1000, 1800))
    try:
        read(model, 0, other[:600], 300)
        read(model, 1, other[:600], 300)
        read(model, 1, other[600:640], 1)
        model.truncate(0, 0)
        read(model, 0, other[:500], 500)
        model._low = Interrupted(low)
        with pytest.raises(KeyboardInterrupt):
            model.forward([Span(0, other[500:740], range(-1, 239), ())])
        model._low = low
        model.truncate(0, 0)
        assert cut(model, 1, 625) == 0
    finally:
        model._low = low
        model.close()


def scattered(model: LlamaModel, text: list[int]) -> None:
    """The second half of the text lies before the first."""
    half = len(text) // 2
    read(model, 1, text, 512)
    read(model, 0, text[:half], 512)
    model.truncate(1, 0)
    read(model, 0, text[half:], 512)


def test_models_in_two_threads_do_not_take_each_other_s_lists(alone: Alone) -> None:
    """One of them has none, as recurrent models have none."""
    text = alone.texts[1][:400]
    span = [Span(0, [7], [-1], [0])]
    models = [LlamaModel(alone.path, LlamaOptions(n_ctx=N_CTX, n_slots=2, threads=1)) for _ in range(2)]
    models[1]._order = None
    wrong: list[int] = []

    def run(model: LlamaModel) -> None:
        first = model.forward(span)[0][0].copy()
        model.keep(0, ())
        for i in range(60):
            if not np.array_equal(model.forward(span)[0][0], first):
                wrong.append(i)
            model.keep(0, ())

    try:
        scattered(models[0], text)
        scattered(models[1], text)
        threads = [threading.Thread(target=run, args=(m,)) for m in models]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not wrong
        with_lists, without = (m.forward(span)[0][0].copy() for m in models)
        assert not np.array_equal(with_lists, without), "the order of the cells would not have mattered"
        for m in models:
            m.keep(0, ())
    finally:
        for m in models:
            m.close()
