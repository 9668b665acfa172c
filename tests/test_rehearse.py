"""Rehearsal against the real thing in virtual time: the same loop, with models that compute instead of being played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from helpers import LETTERS, markov_table
from slipstream.advise import listen as listening
from slipstream.advise.played import RANKS, WINDOW, Heard
from slipstream.advise.rehearse import Rehearsal, Script, listen, rehearse
from slipstream.core.cost import Prices
from slipstream.core.policy import Fixed
from slipstream.core.ports import Drafter, Want
from slipstream.core.priced import MOST, Priced
from slipstream.core.sampling import Sampler
from slipstream.core.types import SamplingParams
from slipstream.core.verify import verifier
from slipstream.drafters import create
from slipstream.drafters.corpus import CorpusDrafter
from slipstream.drafters.corpus_files import Corpus
from slipstream.drafters.model import ModelDrafter
from slipstream.engine import Engine
from slipstream.models.toy import Table, ToyModel, ToyTokenizer
from virtual import CURVES, Clock, TimedModel, curve

N = 8
TARGET = markov_table(N, order=2, seed=3, spread=1.0)
LIKE: Table = lambda past: TARGET(past) + 0.4 * markov_table(N, order=1, seed=9)(past)  # noqa: E731
PROMPT = [1, 2, 3, 1]
DRAFT = curve((1, 8), (2, 9), (8, 14), (64, 80))


def always(guess: Sequence[int]) -> Heard:
    """Guesses these tokens, sure of each."""
    return Heard({0: np.array(guess)[:, None]}, {0: np.full((len(guess), 1), 0.97, np.float32)})


def real(
    name: str, drafters: Sequence[Drafter] = (), n: int = 150, k: int | None = None, width: int = 1, like: bool = False
) -> tuple[list[int], float]:
    """The text, and seconds behind its first token; `like` drafts with a model, too."""
    clock = Clock()
    model = TimedModel(clock, CURVES[name], TARGET, N, noise=0.0)
    model._caps = replace(model.caps, n_batch=512, max_nodes=63, max_leaves=16)  # as a real model has them
    made = [*drafters, *([ModelDrafter(TimedModel(clock, DRAFT, LIKE, N, noise=0.0))] if like else [])]
    priced = Priced(Prices(CURVES[name]), {"model": Prices(DRAFT)}, replace(MOST, width=width))
    engine = Engine(model, ToyTokenizer(LETTERS[:N]), made, priced if k is None else Fixed(k, width))
    engine._loop.clock = clock
    ids: list[int] = []
    start = 0.0
    for chunk in engine.stream(PROMPT, max_tokens=n):
        if not ids:
            start = clock.now
        ids += [t.id for t in chunk.tokens]
    return ids, clock.now - start


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("k", [None, 1, 4])
def test_without_a_draft_model_rehearsal_is_the_real_thing(name: str, k: int | None) -> None:
    said, plain_s = real(name)
    _, drafted_s = real(name, [create("suffix", k is None)], k=k)
    found = Rehearsal(CURVES[name], ["suffix"], k=k).play(Script("x", PROMPT, said))
    assert found.plain_s == pytest.approx(plain_s, rel=1e-6)
    assert found.seconds == pytest.approx(drafted_s, rel=1e-6)
    assert found.stats.emitted == 149  # the first one came with the prompt


@pytest.mark.parametrize("name", ["flat", "small"])
@pytest.mark.parametrize("k", [None, 4])
def test_so_it_is_with_a_corpus_and_with_trees(name: str, k: int | None) -> None:
    said, _ = real(name)
    corpus = Corpus(np.array([*said[20:90], -1, *said[5:60], -1], np.int32), 2, {})
    _, drafted_s = real(name, [CorpusDrafter(corpus)], k=k)
    found = Rehearsal(CURVES[name], corpus=corpus, k=k).play(Script("x", PROMPT, said))
    assert found.seconds == pytest.approx(drafted_s, rel=1e-6) and found.stats.accepted > 20
    _, drafted_s = real(name, [create("suffix", k is None)], k=k, width=3)
    found = Rehearsal(CURVES[name], ["suffix"], k=k, width=3).play(Script("x", PROMPT, said))
    assert found.seconds == pytest.approx(drafted_s, rel=1e-6)


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize(("k", "width"), [(None, 1), (3, 1), (3, 2)])
def test_with_a_draft_model_it_comes_close(name: str, k: int | None, width: int) -> None:
    said, _ = real(name)
    _, drafted_s = real(name, [create("suffix", k is None)], k=k, width=width, like=True)
    script = Script("x", PROMPT, said)
    heard = listen(ToyModel(LIKE, N, 512), script)
    found = Rehearsal(CURVES[name], ["suffix"], DRAFT, k, width).play(script, heard)
    assert found.seconds == pytest.approx(drafted_s, rel=0.12)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_drawn_guesses_are_accepted_as_often_as_their_overlap_says(temperature: float) -> None:
    """Speculative sampling accepts a drawn guess with probability sum(min(p, q)); 3,000 steps, one guess each: four
    standard errors are 0.037, which chance alone passes less than once in 10,000 times."""
    params = SamplingParams(temperature=temperature, seed=3)
    said, p = list(PROMPT), []
    sampler = Sampler(params, PROMPT)
    for _ in range(3000):
        row = TARGET(said)
        f = sampler.filtered(row, ())
        p.append(dict(zip(f.ids.tolist(), f.probs().tolist(), strict=True)))
        said.append(int(np.random.default_rng([7, len(said)]).choice(f.ids, p=f.probs() / f.probs().sum())))
    text = said[len(PROMPT) :]
    heard = listening.listen(ToyModel(LIKE, N, 4096), PROMPT, text, params=params, likely=p)
    assert heard.overlap is not None and heard.overlap.shape == (3000,)
    told = heard.drawn(text, seed=1)
    rate = float(np.mean(told.guess[0][:, 0] == np.array(text)))
    real_rate = _accepted(params, text)
    assert rate == pytest.approx(float(heard.overlap.mean()), abs=0.037)
    assert real_rate == pytest.approx(float(heard.overlap.mean()), abs=0.037)


def _accepted(params: SamplingParams, text: Sequence[int]) -> float:
    """Share of guesses that the rejection verifier accepts, at each position of a text."""
    verify, accepted = verifier("rejection"), 0
    drafter = ModelDrafter(ToyModel(LIKE, N, 4096), "sampled")
    drafter.begin(0, PROMPT, params)
    for i in range(len(text)):
        past = [*PROMPT, *text[:i]]
        draft = drafter.propose(0, past, Want(1, 1))
        rows = np.array([TARGET(past), TARGET([*past, *draft.tokens])], np.float32)
        accepted += len(verify(draft, rows, Sampler(params, past), len(past)).path)
    return accepted / len(text)


def test_listening_is_hearing_one_token_after_the_other() -> None:
    prompt = list(np.random.default_rng(1).integers(0, N, 3 * WINDOW))
    said = list(np.random.default_rng(2).integers(0, N, 50))
    heard = listen(ToyModel(LIKE, N, 512), Script("x", prompt, said))
    for key in (0, WINDOW):
        before = prompt[-key:]
        for i in range(50):
            row = LIKE([*before, *said[:i]])
            assert list(heard.guess[key][i]) == list((-row).argsort()[:RANKS])
            assert heard.sure[key][i][0] == pytest.approx(1 / np.exp(row - row.max()).sum(), rel=1e-4)
    assert list(listen(ToyModel(LIKE, N, 512), Script("x", prompt[:9], said)).guess) == [0]


@pytest.mark.parametrize("name", CURVES)
def test_right_guesses_gain_and_wrong_ones_cost_next_to_nothing(name: str) -> None:
    said = [int(t) for t in np.random.default_rng(4).integers(0, 500, 300)]
    script = Script("x", PROMPT, said)
    right = always(said)
    wrong = always([t + 1 for t in said])
    cheap = curve((1, 0.1 * 1e3 * CURVES[name].at(1, 16)), (64, 0.6 * 1e3 * CURVES[name].at(1, 16)))
    gain = rehearse(script, CURVES[name], [], right, cheap).speedup
    assert gain > (0.97 if name == "linear" else 1.5)
    assert rehearse(script, CURVES[name], [], wrong, cheap).speedup > 0.95
    assert name == "linear" or rehearse(script, CURVES[name], [], right, cheap).stats.accepted > 100


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_model_is_heard_to_say_what_it_drafts(temperature: float) -> None:
    """At a temperature it chooses with the target's noise, so what it says depends on seed and position."""
    params = SamplingParams(temperature=temperature, seed=5)
    said = list(np.random.default_rng(6).integers(0, N, 40))
    heard = listen(ToyModel(LIKE, N, 512), Script("x", PROMPT, said), params=params)
    drafter = ModelDrafter(ToyModel(LIKE, N, 512))
    drafter.begin(0, PROMPT, params)
    for i in range(40):
        draft = drafter.propose(0, [*PROMPT, *said[:i]], Want(1, 1))
        assert draft.tokens == (heard.guess[0][i][0],)
        assert draft.prob[0] == pytest.approx(heard.sure[0][i][0], rel=1e-4)


def test_a_text_that_the_draft_model_cannot_read_is_heard_up_to_there() -> None:
    said = [1, 2, N + 3, 4, 5]
    heard = listen(ToyModel(LIKE, N, 512), Script("x", PROMPT, said))
    assert len(heard.guess[0]) == 2
    wide = curve((1, 100), (64, 110))
    assert rehearse(Script("x", PROMPT, said), wide, [], heard, curve((1, 1), (64, 5))).stats.emitted == 4
    assert len(listen(ToyModel(LIKE, N, n_ctx=6), Script("x", PROMPT, [1] * 9)).guess[0]) == 2


def test_what_the_policy_learns_of_one_text_it_knows_in_the_next() -> None:
    said = [int(t) for t in np.random.default_rng(4).integers(0, 500, 60)]
    heard = always(said)
    cheap = curve((1, 10), (64, 20))
    way = Rehearsal(CURVES["flat"], [], cheap)
    script = Script("x", PROMPT, said)
    alone = rehearse(script, CURVES["flat"], [], heard, cheap).seconds
    assert way.play(script, heard).seconds == alone
    assert way.play(script, heard).seconds < alone


def test_an_easy_text_does_not_spoil_the_next_one() -> None:
    """A file that is edited runs at several times plain decoding's speed by repeats alone. Behind it, new text that a
    draft model knows must gain as it does on a fresh engine: what a token was worth there says nothing of it here."""
    rng = np.random.default_rng(8)
    file = [int(t) for t in rng.integers(0, 400, 200)]
    edit = Script("edit", file, [*file[:150], *file[150:200]])
    fresh_text = [int(t) for t in rng.integers(400, 900, 96)]
    new = Script("new", PROMPT, fresh_text)
    wrong, right = always([901] * 200), always(fresh_text)
    target, draft = curve((1, 40), (4, 41), (8, 58), (16, 104), (64, 420)), curve((1, 10), (8, 14), (64, 60))
    alone = rehearse(new, target, ["suffix"], right, draft).speedup
    way = Rehearsal(target, ["suffix"], draft)
    assert way.play(edit, wrong).speedup > 3 and alone > 1.7
    assert way.play(new, right).speedup > 0.93 * alone
