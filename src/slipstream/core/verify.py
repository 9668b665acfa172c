"""Verification: pure functions of a draft, the target's logits rows and the sampling settings.

`rows[0]` are the logits after the last committed token, `rows[i + 1]` those after node `i`. `position` is the index
of the first drafted token. Each returns the accepted path and the token that the target adds after it.

| verifier  | promises                                                       | the text depends on the drafter |
|-----------|----------------------------------------------------------------|---------------------------------|
| exact     | the token that plain decoding would choose, at every position  | no                              |
| rejection | the target's distribution                                      | yes                             |
| block     | the target's distribution, more accepted tokens (chains)       | yes                             |
| typical   | nothing: plausible tokens are let through                      | yes                             |
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from slipstream.core import noise
from slipstream.core.sampling import Probs, Sampler, draw
from slipstream.core.types import Array, Draft, Verdict
from slipstream.errors import InputError, UnknownName, UsageError

Verify = Callable[[Draft, Array, Sampler, int], Verdict]


def exact(draft: Draft, rows: Array, sampler: Sampler, position: int) -> Verdict:
    """Accept a drafted token when it *is* the token that the target chooses there."""
    kids = draft.children()
    path: list[int] = []
    said: list[int] = []
    node = -1
    while True:
        token = sampler.pick(rows[node + 1], position + len(path), said)
        node = next((c for c in kids[node + 1] if draft.tokens[c] == token), -1)
        if node < 0:
            return Verdict(tuple(path), token)
        path.append(node)
        said.append(token)


def rejection(draft: Draft, rows: Array, sampler: Sampler, position: int) -> Verdict:
    """Speculative sampling: accept a node with min(1, p/q), else go on with the residual max(p - q, 0).

    Leviathan et al. 2023 and Chen et al. 2023 for chains; recursive over the siblings of a tree (arXiv 2402.14160).
    """
    if sampler.params.greedy:
        return exact(draft, rows, sampler, position)
    kids, seed = draft.children(), sampler.params.seed
    path: list[int] = []
    said: list[int] = []
    node = -1
    while True:
        here = position + len(path)
        p = sampler.filtered(rows[node + 1], said).dense(rows.shape[1])
        chosen = -1
        for rank, child in enumerate(kids[node + 1]):
            token, q = draft.tokens[child], draft.q[child]
            q_token = 1.0 if q is None else float(q[token])
            if noise.uniform(seed, noise.ACCEPT, here, rank, position) * q_token < p[token]:
                chosen = child
                break
            p = _residual(p, token, q)
        if chosen < 0:
            return Verdict(tuple(path), draw(p, seed, noise.RESIDUAL, here, position))
        node = chosen
        path.append(node)
        said.append(draft.tokens[node])


def block(draft: Draft, rows: Array, sampler: Sampler, position: int) -> Verdict:
    """Block verification of a chain (Sun et al., arXiv 2403.10444, algorithm 2): accepts the longest part that fits.

    Raises UsageError for a tree.
    """
    if not draft.is_chain:
        raise UsageError("block verification is defined for chains", "use rejection for trees")
    if sampler.params.greedy or not draft.tokens:
        return rejection(draft, rows, sampler, position)
    seed, n = sampler.params.seed, len(draft)
    weight, best = 1.0, 0
    p = sampler.filtered(rows[0]).dense(rows.shape[1])
    rest = _excess(1.0, p, draft, 0)  # of the token after the accepted part, if that part is `best` long
    for i in range(1, n + 1):
        token, q = draft.tokens[i - 1], draft.q[i - 1]
        ratio = p[token] / (1.0 if q is None else max(float(q[token]), np.finfo(np.float64).tiny))
        weight = min(weight * ratio, 1.0)
        p = sampler.filtered(rows[i], draft.tokens[:i]).dense(rows.shape[1])
        if i == n:
            accept, after = weight, p
        else:
            after = _excess(weight, p, draft, i)
            mass = float(after.sum())
            accept = mass / (mass + (1 - weight)) if mass > 0 else 0.0
        if noise.uniform(seed, noise.ACCEPT, position + i - 1, 0, position) < accept:
            best, rest = i, after
    if not rest.any():  # the target and the draft agree to the last bit: only rounding can lead here
        rest = sampler.filtered(rows[best], draft.tokens[:best]).dense(rows.shape[1])
    return Verdict(tuple(range(best)), draw(rest, seed, noise.RESIDUAL, position + best, position))


def typical(
    draft: Draft, rows: Array, sampler: Sampler, position: int, epsilon: float = 0.09, delta: float = 0.3
) -> Verdict:
    """Lossy: accept a token likelier than min(epsilon, delta * exp(-entropy)) (Medusa, arXiv 2401.10774)."""
    if sampler.params.greedy:
        return exact(draft, rows, sampler, position)
    kids, seed = draft.children(), sampler.params.seed
    path: list[int] = []
    said: list[int] = []
    node = -1
    while True:
        here = position + len(path)
        f = sampler.filtered(rows[node + 1], said)
        probs = f.probs()
        entropy = -float((probs * np.log(np.maximum(probs, 1e-300))).sum())
        bound = min(epsilon, delta * float(np.exp(-entropy)))
        p = f.dense(rows.shape[1])
        node = next((c for c in kids[node + 1] if p[draft.tokens[c]] > bound), -1)
        if node < 0:
            return Verdict(tuple(path), draw(p, seed, noise.RESIDUAL, here, position))
        path.append(node)
        said.append(draft.tokens[node])


VERIFY: dict[str, Verify] = {"exact": exact, "rejection": rejection, "block": block, "typical": typical}
LOSSY = frozenset({"typical"})


def verifier(name: str, width: int = 1) -> Verify:
    """The verifier of this name, for drafts of that width.

    Raises UnknownName, which lists the ones there are, or InputError for block verification of trees.
    """
    if name not in VERIFY:
        raise UnknownName("verifier", name, VERIFY)
    if name == "block" and width > 1:
        raise InputError("block verification takes chains, not trees", "use --width 1, or --verify rejection")
    return VERIFY[name]


def _residual(p: Probs, token: int, q: Array | None) -> Probs:
    """norm(max(p - q, 0)). When rounding leaves nothing (p and q are the same), p itself."""
    if q is None:
        rest = p.copy()
        rest[token] = 0.0
    else:
        rest = np.maximum(p - q, 0.0)
    total = rest.sum()
    return np.asarray(rest / total) if total > 0 else p


def _excess(weight: float, p: Probs, draft: Draft, i: int) -> Probs:
    """max(weight * p - q_i, 0) for the drafted node `i`, not normalised."""
    rest = weight * p
    q = draft.q[i]
    if q is None:
        rest[draft.tokens[i]] = max(rest[draft.tokens[i]] - 1.0, 0.0)
    else:
        np.maximum(rest - q, 0.0, out=rest)
    return rest
