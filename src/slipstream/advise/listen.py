"""Listening: what a draft model would have guessed of each token of a text, in one pass over it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from slipstream.advise.played import RANKS, WINDOW, Heard
from slipstream.core.ports import Model
from slipstream.core.sampling import Sampler
from slipstream.core.types import Array, SamplingParams, Span
from slipstream.drafters.model import options

_ROWS = 32  # logits that are asked for at once

Likely = Sequence[Mapping[int, float]]  # of each token said: the target's probabilities of the likeliest ones


def listen(
    model: Model,
    prompt: Sequence[int],
    said: Sequence[int],
    n_shared: int = 0,
    params: SamplingParams | None = None,
    likely: Likely | None = None,
) -> Heard:
    """Pass prompt and text through slot 0 of a draft model, emptied first. Ids from `n_shared` on are never guessed.

    `params`: how the target chose its tokens; the draft model chooses with the same noise, as it does when drafting.
    With `likely`, `overlap` is the sum of min(p, q): the chance that a guess drawn from q is accepted under p.
    """
    params = params or SamplingParams()
    guess: dict[int, npt.NDArray[np.int64]] = {}
    sure: dict[int, Array] = {}
    overlap: list[float] = []
    for window in (0, WINDOW) if len(prompt) > 2 * WINDOW else (0,):
        read = prompt[-window:]
        sampler = Sampler(params, prompt)
        tokens: list[list[int]] = []
        probs: list[list[float]] = []
        for row in _rows(model, [*read, *said], len(read)):
            at, row = len(prompt) + len(tokens), row[: n_shared or None]
            found = options(sampler, row, (), at, at, RANKS, own=False, n_target=0)
            if likely is not None and not window:
                overlap.append(_overlap(sampler, row, likely[len(tokens)]))
            sampler.append(said[len(tokens)])
            found += found[-1:] * (RANKS - len(found))
            tokens.append([o.token for o in found])
            probs.append([o.prob for o in found])
        guess[window] = np.array(tokens, np.int64).reshape(-1, RANKS)
        sure[window] = np.array(probs, np.float32).reshape(-1, RANKS)
    return Heard(guess, sure, np.array(overlap, np.float32) if likely is not None else None)


def _overlap(sampler: Sampler, row: Array, likely: Mapping[int, float]) -> float:
    f = sampler.filtered(row, ())
    q = dict(zip(f.ids.tolist(), f.probs().tolist(), strict=True))
    return float(sum(min(p, q.get(token, 0.0)) for token, p in likely.items()))


def _rows(model: Model, tokens: Sequence[int], n_prompt: int) -> Iterator[Array]:
    """Logits from the last prompt token on, evaluated a few at a time: of a wide vocabulary they take much memory.

    A text that does not fit the context, or holds a token that the model does not have, is heard up to there.
    """
    caps, at = model.caps, 0
    tokens = tokens[: caps.n_ctx]
    tokens = tokens[: next((i for i, t in enumerate(tokens) if t >= caps.n_vocab), len(tokens))]
    model.truncate(0, 0)
    while at < len(tokens) - 1:
        reading = at < n_prompt - 1
        end = min(n_prompt - 1, at + caps.n_batch) if reading else min(len(tokens) - 1, at + _ROWS)
        new = tokens[at:end]
        rows = model.forward([Span(0, new, range(-1, len(new) - 1), () if reading else range(len(new)))])[0]
        yield from rows
        model.keep(0, range(len(new)))
        at = end
