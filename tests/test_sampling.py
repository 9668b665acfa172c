"""Sampling settings against slow plain-Python definitions, and noise as a pure function of its key.

Statistical tests use fixed seeds (the outcome never changes); each rejects a correct generator with probability 0.001.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare, kstest

from slipstream.core import noise
from slipstream.core.sampling import Sampler, draw, log_probs
from slipstream.core.types import Array, SamplingParams

MASK = 2**64 - 1
ALPHA = 0.001


def row(*logits: float) -> Array:
    return np.array(logits, np.float32)


# -- noise -----------------------------------------------------------------------------------------------------------


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def slow_uniform(seed: int, stream: int, position: int, index: int, root: int = 0) -> float:
    golden, key = 0x9E3779B97F4A7C15, seed
    for part in (stream, position, root):
        key = mix(key + golden & MASK) ^ part
    x = mix((index + 1) * golden + mix(key + golden & MASK) & MASK)
    return ((x >> 12) + 0.5) * 2.0**-52


KEY = st.tuples(st.integers(0, MASK), st.integers(0, 3), st.integers(0, 10**6), st.integers(0, 10**6))


@given(KEY, st.lists(st.integers(0, 300_000), min_size=1, max_size=20))
def test_noise_is_a_pure_function_of_its_key(key: tuple[int, int, int, int], index: list[int]) -> None:
    seed, stream, position, root = key
    got = noise.uniforms(seed, stream, position, np.array(index), root)
    assert list(got) == [slow_uniform(seed, stream, position, i, root) for i in index]
    assert (got == noise.uniforms(seed, stream, position, np.array(index), root)).all()
    assert noise.uniform(seed, stream, position, index[0], root) == got[0]
    assert (got > 0).all() and (got < 1).all()
    assert np.allclose(noise.gumbel(seed, stream, position, np.array(index), root), -np.log(-np.log(got)))


def u(n: int, seed: int = 1, stream: int = 0, position: int = 0, root: int = 0) -> np.ndarray:  # type: ignore[type-arg]
    return noise.uniforms(seed, stream, position, np.arange(n), root)


@pytest.mark.parametrize("over", ["index", "position", "seed", "root"])
def test_noise_is_uniform_along_every_part_of_the_key(over: str) -> None:
    n = 20_000
    if over == "index":
        x = u(n)
    else:
        x = np.array([u(1, **{over: i})[0] for i in range(n)])  # type: ignore[arg-type]
    assert chisquare(np.histogram(x, 64, (0, 1))[0]).pvalue > ALPHA
    pairs = np.histogram2d(x[:-1:2], x[1::2], 8, ((0, 1), (0, 1)))[0]  # neighbours
    assert chisquare(pairs.ravel()).pvalue > ALPHA


@pytest.mark.parametrize(
    "other",
    [
        {"stream": 1},
        {"stream": 2},
        {"stream": 3},
        {"position": 1},
        {"root": 1},
        {"seed": 2},
        {"position": 1, "root": 1},
    ],
)
def test_noise_under_different_keys_is_independent(other: dict[str, int]) -> None:
    n = 20_000
    x, y = u(n), u(n, **other)
    assert chisquare(np.histogram2d(x, y, 8, ((0, 1), (0, 1)))[0].ravel()).pvalue > ALPHA
    assert abs(np.corrcoef(x, y)[0, 1]) < 4 / math.sqrt(n)
    for shift in (1, 2, 17):  # nor the same numbers displaced
        assert not np.intersect1d(x, np.roll(y, shift)).size


def test_gumbel_noise_has_its_distribution() -> None:
    g = noise.gumbel(5, 0, 7, np.arange(20_000))
    assert kstest(g, lambda x: np.exp(-np.exp(-x))).pvalue > ALPHA


# -- filters ---------------------------------------------------------------------------------------------------------


def softmax(xs: Sequence[float]) -> list[float]:
    top = max(xs)
    e = [math.exp(x - top) for x in xs]
    return [x / sum(e) for x in e]


def slow_filtered(logits: Array, p: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> dict[int, float]:
    """token -> probability, by the definitions, in the documented order."""
    x = [float(v) for v in logits]
    for token, bias in p.logit_bias.items():
        if token < len(x):
            x[token] = float(np.float32(x[token]) + np.float32(bias))
    for token in {*prompt, *output}:
        x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
    for token in set(output):
        x[token] -= p.presence_penalty + p.frequency_penalty * list(output).count(token)
    ids = list(range(len(x)))
    if p.greedy:
        return {max(ids, key=lambda i: x[i]): 1.0}
    x = [v / p.temperature for v in x]
    if p.top_k:
        ids = sorted(ids, key=lambda i: -x[i])[: p.top_k]
    if p.top_p < 1:
        mass, nucleus = 0.0, []
        probs = dict(zip(ids, softmax([x[i] for i in ids]), strict=True))
        for i in sorted(ids, key=lambda i: -x[i]):
            nucleus.append(i)
            mass += probs[i]
            if mass >= p.top_p:
                break
        ids = nucleus
    top = max(x[i] for i in ids)
    ids = [i for i in ids if p.min_p == 0 or math.exp(x[i] - top) >= p.min_p]
    return dict(zip(ids, softmax([x[i] for i in ids]), strict=True))


# Logits on a coarse grid with distinct values: ties and rounding at a filter's border have tests of their own.
LOGITS = st.lists(st.integers(-40, 40), min_size=2, max_size=12, unique=True).map(
    lambda v: row(*[x / 8 + 0.01 for x in v])
)
SETTINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 50]),
    top_p=st.sampled_from([1.0, 0.9, 0.503, 0.05]),
    min_p=st.sampled_from([0.0, 0.0502, 0.31, 0.999]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.53, -0.21]),
    frequency_penalty=st.sampled_from([0.0, 0.37, -0.13]),
    logit_bias=st.dictionaries(st.integers(0, 14), st.sampled_from([-100.0, -1.03, 2.07]), max_size=3),
    seed=st.integers(0, MASK),
)


@given(LOGITS, SETTINGS, st.data())
def test_all_settings_together_equal_their_definitions(logits: Array, p: SamplingParams, data: st.DataObject) -> None:
    tokens = st.lists(st.integers(0, len(logits) - 1), max_size=6)
    prompt, output, path = data.draw(tokens), data.draw(tokens), data.draw(tokens)
    sampler = Sampler(p, prompt)
    for token in output:
        sampler.append(token)
    before = logits.copy()
    got = sampler.filtered(logits, path)
    expected = slow_filtered(logits, p, prompt, [*output, *path])
    probs = dict(zip(got.ids.tolist(), got.probs().tolist(), strict=True))
    # A token at the very border of a filter may go either way by rounding: a difference must be such a one.
    assert set(probs) == set(expected) or abs(sum(expected.values()) - 1) > 1e-9
    assert all(probs[i] == pytest.approx(expected[i], abs=1e-5) for i in expected)
    assert list(got.ids) == sorted(got.ids) and (logits == before).all()
    assert got.dense(len(logits)).sum() == pytest.approx(1)
    # Nothing of the path stays behind.
    again = sampler.filtered(logits)
    fresh = Sampler(p, prompt)
    for token in output:
        fresh.append(token)
    assert (again.ids == fresh.filtered(logits).ids).all() and (again.scores == fresh.filtered(logits).scores).all()
    token = sampler.pick(logits, 3, path)
    assert token in expected


def test_the_order_of_the_settings() -> None:
    x = row(3.0, 2.9, 2.0, 1.0, 0.0)

    def ids(logits: Array = x, **settings: object) -> list[int]:
        return Sampler(SamplingParams(**settings), [0]).filtered(logits).ids.tolist()  # type: ignore[arg-type]

    # Bias comes first: a biased token counts for top-k; a bias that changes the sign changes what the penalty does.
    assert ids(temperature=1, top_k=1, logit_bias={4: 9.0}) == [4]
    assert ids(row(1.0, 0.9), logit_bias={0: -2.0}, repetition_penalty=2.0, temperature=1, top_k=1) == [1]
    # Penalties come before the filters: 3.0 / 1.5 falls behind 2.9.
    assert ids(temperature=1, top_k=1, repetition_penalty=1.5) == [1]
    # Temperature comes before top-p and min-p: a hot one lets more in.
    assert len(ids(temperature=4, top_p=0.8)) > len(ids(temperature=0.5, top_p=0.8))
    assert len(ids(temperature=4, min_p=0.4)) > len(ids(temperature=0.5, min_p=0.4))
    # Top-k before top-p: the mass is that of the k tokens left, of which two hold 0.84.
    assert ids(temperature=1, top_k=3, top_p=0.8) == [0, 1]
    assert ids(temperature=1, top_p=0.8) == [0, 1, 2]


def test_ties_at_a_border_are_settled_by_the_lower_id() -> None:
    x = row(1.0, 2.0, 1.0, 2.0, 1.0)
    warm = {"temperature": 1.0}
    assert Sampler(SamplingParams(top_k=3, **warm)).filtered(x).ids.tolist() == [0, 1, 3]  # type: ignore[arg-type]
    assert Sampler(SamplingParams(top_p=0.7, **warm)).filtered(x).ids.tolist() == [0, 1, 3]  # type: ignore[arg-type]
    assert Sampler(SamplingParams()).pick(x, 0) == 1


@pytest.mark.parametrize("top_p", [0.001, 0.5, 0.9, 0.999])
def test_top_p_takes_the_smallest_set_that_reaches_it(top_p: float) -> None:
    """A vocabulary of a real size, where the shortcut before sorting matters."""
    rng = np.random.default_rng(2)
    for spread in (0.1, 1.0, 4.0):
        x = (rng.standard_normal(20_000) * spread).astype(np.float32)
        f = Sampler(SamplingParams(temperature=1.0, top_p=top_p)).filtered(x)
        p = np.exp(x.astype(float))
        p /= p.sum()
        kept = np.sort(p[f.ids])
        assert kept.sum() >= top_p - 1e-9 > kept[1:].sum() - 2e-9
        assert kept[0] >= np.delete(p, f.ids).max(initial=0)


def test_greedy_takes_the_largest_and_knows_how_far_the_others_are() -> None:
    sampler, x = Sampler(SamplingParams()), row(0.5, 3.0, 2.75, -1)
    assert {sampler.pick(x, i) for i in range(20)} == {1}
    assert [sampler.behind(x, 7, t) for t in range(4)] == [2.5, 0.0, 0.25, 4.0]


def test_how_far_a_token_is_behind_when_sampling_is_in_logits() -> None:
    """Lifting its logit by a little less changes nothing, by a little more makes it the choice."""
    rng, p = np.random.default_rng(0), SamplingParams(temperature=0.5, seed=3)
    for position in range(300):
        x = rng.standard_normal(8).astype(np.float32)
        best, other = Sampler(p).pick(x, position), int(rng.integers(8))
        if best == other:
            continue
        behind = Sampler(p).behind(x, position, other)
        for lift, expected in ((0.99, best), (1.01, other)):
            lifted = x.copy()
            lifted[other] += np.float32(behind * lift)
            assert Sampler(p).pick(lifted, position) == expected


def test_pick_draws_from_the_filtered_distribution() -> None:
    x, p = row(2, 1, 0.5, 0, -1), SamplingParams(temperature=0.8, min_p=0.1, seed=4)
    counts = np.bincount([Sampler(p).pick(x, i) for i in range(6000)], minlength=5)
    expected = Sampler(p).filtered(x).dense(5)
    assert counts[expected == 0].sum() == 0
    assert chisquare(counts[expected > 0], 6000 * expected[expected > 0]).pvalue > ALPHA
    by_seed = [Sampler(SamplingParams(temperature=0.8, min_p=0.1, seed=s)).pick(x, 3) for s in range(6000)]
    assert chisquare(np.bincount(by_seed, minlength=5)[expected > 0], 6000 * expected[expected > 0]).pvalue > ALPHA


def test_the_choice_does_not_depend_on_tokens_that_were_filtered_away() -> None:
    """Noise belongs to a token id: a filter must not shift it to another."""
    x = row(-1, 2, 0, 1, 0.5)
    for i in range(200):
        free = Sampler(SamplingParams(temperature=1.0, seed=1)).pick(x, i)
        filtered = Sampler(SamplingParams(temperature=1.0, seed=1, top_k=3)).pick(x, i)
        assert filtered == free or free in (0, 2)


def test_draw_takes_unnormalised_distributions() -> None:
    probs = np.array([0.0, 3.0, 1.0, 0.0, 4.0])
    counts = np.bincount([draw(probs, 1, noise.RESIDUAL, i, 0) for i in range(6000)], minlength=5)
    assert counts[[0, 3]].sum() == 0
    assert chisquare(counts[[1, 2, 4]], 6000 * probs[[1, 2, 4]] / 8).pvalue > ALPHA


def test_appended_tokens_and_path_tokens_weigh_the_same() -> None:
    p = SamplingParams(temperature=1, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)
    x = row(1, -1, 0.5, 2)
    a, b = Sampler(p, [0]), Sampler(p, [0])
    for token in (1, 1, 3):
        a.append(token)
    assert np.allclose(a.adjusted(x), b.adjusted(x, [1, 1, 3]))
    assert not np.allclose(a.adjusted(x), b.adjusted(x))
    # The prompt counts for the repetition penalty and for nothing else.
    only = Sampler(SamplingParams(presence_penalty=1.0, frequency_penalty=1.0), [0, 1, 2])
    assert (only.adjusted(x) == x).all()


def test_penalties_pass_over_ids_that_a_smaller_draft_model_lacks() -> None:
    p = SamplingParams(repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2, logit_bias={9: 1.0})
    sampler = Sampler(p, [0, 8])
    sampler.append(9)
    assert np.allclose(sampler.adjusted(row(1, -1, 0.5), [1, 7]), row(1 / 1.3, -1.3 - 0.6, 0.5))


@given(LOGITS, st.data())
def test_log_probs_are_the_model_s_own(logits: Array, data: st.DataObject) -> None:
    token, top = data.draw(st.integers(0, len(logits) - 1)), data.draw(st.integers(0, 15))
    own, best = log_probs(logits, token, top)
    expected = [math.log(x) for x in softmax([float(v) for v in logits])]
    assert own == pytest.approx(expected[token], abs=1e-9)
    order = sorted(range(len(logits)), key=lambda i: (-expected[i], i))[:top]
    assert [i for i, _ in best] == order
    assert [v for _, v in best] == pytest.approx([expected[i] for i in order], abs=1e-9)
