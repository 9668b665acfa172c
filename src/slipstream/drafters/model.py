"""Drafts from a smaller model with the same vocabulary; its cache follows the target's sequence.

The way it chooses suits the verifier: for `exact` with the target's own keyed noise (at temperature 0: its largest
logit), so that it says what the target would say; for the sampling verifiers by drawing with noise of its own, and the
distribution drawn from goes along as `q`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from slipstream.core import noise
from slipstream.core.cut import cut
from slipstream.core.ports import Constraint, Model, Resumable, Saved, Want
from slipstream.core.sampling import Probs, Sampler
from slipstream.core.types import EMPTY_DRAFT, Array, Draft, SamplingParams, Span, Verdict

Choice = Literal["keyed", "sampled"]
_DRAWN = 0.6  # claim of a drawn token, before any experience


@dataclass
class _Slot:
    sampler: Sampler
    seen: list[int] = field(default_factory=list)  # what the draft model's cache holds
    start: int = 0  # committed tokens before those
    fed: int = 0  # committed tokens that the sampler's penalties know
    synced: int = 0  # committed tokens that are known to stand in `seen`, `start` included


@dataclass(frozen=True)
class Option:
    """A token to draft: how sure the draft model is, what it was drawn from, and its evidence for the policy."""

    token: int
    prob: float
    q: Array | None
    evidence: Hashable = None


class ModelDrafter:
    """`n_shared`: ids from here on are padding and never drafted; `n_target`: the target's rows, padding included.

    Branches of a tree are siblings of the main chain's nodes.
    """

    costly = True

    def __init__(
        self,
        model: Model,
        choice: Choice = "keyed",
        n_shared: int | None = None,
        n_target: int | None = None,
        name: str = "model",
    ) -> None:
        self.model, self.choice, self.name = model, choice, name
        self.takes_hints = model.caps.rollback == "free"
        self.n_shared = n_shared or model.caps.n_vocab
        self.n_target = n_target or model.caps.n_vocab
        self._slots: dict[int, _Slot] = {}
        self._constraints: dict[int, Constraint] = {}

    def constrain(self, slot: int, constraint: Constraint) -> None:
        """The next sequence that begins in `slot` keeps to this, and so do its drafts."""
        self._constraints[slot] = constraint

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams, cached: int = 0) -> None:
        constraint = self._constraints.pop(slot, None)
        old = self._slots.get(slot)
        kept, start = (old.seen, old.start) if old else ([], 0)
        if not kept or len(kept) != self.model.n_past(slot):  # interrupted, or somebody else has used the slot
            self.model.truncate(slot, 0)
            kept, start = [], 0
        s = self._slots[slot] = _Slot(Sampler(params, tokens, constraint), kept, start, len(tokens))
        self._cut(slot, s, cached)

    def lag(self, slot: int, n_tokens: int) -> tuple[int, int]:
        """Tokens that the next draft has to read first, and tokens that were skipped."""
        s = self._slots[slot]
        return max(n_tokens - max(s.synced, s.start), 1), s.start

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        s = self._slots[slot]
        for token in tokens[s.fed :]:
            s.sampler.append(token)
        s.fed = len(tokens)
        depth = min(want.depth, want.nodes, self.model.caps.n_ctx - (len(tokens) - s.start))
        if depth <= 0 or any(t >= self.model.caps.n_vocab for t in tokens[s.synced :]):
            return EMPTY_DRAFT
        new = self._catch_up(slot, s, tokens, want.read)
        drawn = self.choice == "sampled" and not s.sampler.params.greedy
        levels: list[list[Option]] = []
        path: list[int] = []
        known: list[tuple[Hashable, float]] = []
        while True:
            hint = self._hint(want, path, len(new), depth)
            rows = self._forward(slot, s, [*new, *hint], 1 + len(hint))
            for at in range(1 + len(hint)):
                found = self._options(s, rows[at], path, len(tokens), want.width)
                agreed = at < len(hint) and found[0].token == hint[at]
                if at < len(hint) and not drawn:
                    found = [replace(o, evidence=(o.evidence, agreed)) for o in found]
                levels.append(found)
                path.append(found[0].token)
                known.append((found[0].evidence, found[0].prob))
                more = len(path) < depth and (want.go_on is None or want.go_on(known))
                # Where tokens are drawn at random, neither evidence nor length of a draft may depend on the draw.
                if not agreed or len(path) == depth or (drawn and not more):
                    break
            if not more:
                return _tree(levels, want.nodes, self.name, self.choice == "keyed")
            n = len(tokens) + len(path) - 1
            self._cut(slot, s, n)  # what the hint said otherwise
            if s.start + len(s.seen) < n:  # more is gone: the next draft reads it again
                return _tree(levels, want.nodes, self.name, self.choice == "keyed")
            new = path[-1:]

    def _hint(self, want: Want, path: Sequence[int], n_new: int, depth: int) -> Sequence[int]:
        """Others' guesses behind the path, to be checked beside `n_new` tokens."""
        if want.hint is None or not self.takes_hints:
            return ()
        room = min(depth - len(path) - 1, self.model.caps.n_batch - n_new)
        return list(takewhile(lambda t: t < self.model.caps.n_vocab, want.hint(path, n_new, room)))

    def _catch_up(self, slot: int, s: _Slot, tokens: Sequence[int], read: int) -> Sequence[int]:
        """Bring the cache near the committed tokens, or the last `read` of them; the new ones that it still lacks."""
        same, most = max(s.synced, s.start), min(s.start + len(s.seen), len(tokens) - 1)
        while same < most and s.seen[same - s.start] == tokens[same]:
            same += 1
        self._cut(slot, s, same)
        if s.start and read >= len(tokens):
            self._cut(slot, s, 0)
        elif read and len(tokens) - s.start - len(s.seen) > read:
            self._cut(slot, s, 0)
            s.start = len(tokens) - read
        n_batch = self.model.caps.n_batch
        while (new := tokens[s.start + len(s.seen) :])[n_batch:]:
            self._forward(slot, s, new[:n_batch])
        s.synced = len(tokens)
        return new

    def _cut(self, slot: int, s: _Slot, n: int) -> None:
        """Keep of the cache what stands for the first `n` committed tokens."""
        if n < s.start + len(s.seen):
            keep = n - s.start if n > s.start and self.model.caps.rollback == "free" else 0
            keep = cut(self.model, slot, keep)
            del s.seen[keep:]
            if not keep:
                s.start = 0

    def _forward(self, slot: int, s: _Slot, new: Sequence[int], n_rows: int = 1) -> Array:
        """The last `n_rows` rows."""
        n = len(new)
        rows = self.model.forward([Span(slot, new, range(-1, n - 1), range(n - n_rows, n))])[0]
        self.model.keep(slot, range(n))
        s.seen += new
        return rows[:, : self.n_shared]

    def _options(self, s: _Slot, row: Array, path: Sequence[int], root: int, width: int) -> list[Option]:
        return options(s.sampler, row, path, root + len(path), root, width, self.choice == "sampled", self.n_target)

    def observe(self, slot: int, draft: Draft, verdict: Verdict, logits: Array | None) -> None:
        return None

    def end(self, slot: int) -> None:
        """Nothing to do: the next `begin` says how much of the cache may stay."""
        return None

    def save(self, slot: int) -> Saved:
        """See core.ports.Resumable; an empty state where the model cannot be put aside."""
        s = self._slots.get(slot)
        if s is None or not isinstance(self.model, Resumable) or len(s.seen) != self.model.n_past(slot):
            return Saved(None, 0)
        inner = self.model.save(slot)
        return Saved((tuple(s.seen), s.start, inner), inner.n_bytes + 8 * len(s.seen))

    def load(self, slot: int, saved: Saved) -> None:
        self._slots.pop(slot, None)  # unless its state comes back, the next `begin` empties the slot
        if saved.data is not None and isinstance(self.model, Resumable):
            seen, start, inner = saved.data
            self.model.load(slot, inner)
            self._slots[slot] = _Slot(Sampler(SamplingParams()), list(seen), start)


def options(
    sampler: Sampler, row: Array, path: Sequence[int], position: int, root: int, width: int, own: bool, n_target: int
) -> list[Option]:
    """Up to `width` different tokens behind `path`, the one to go on with first; `root` is the position of the draft's
    first token. `own`: drawn with noise of the draft model's own, q over `n_target` ids goes along.
    """
    params = sampler.params
    if params.greedy:
        return _best(sampler.adjusted(row, path), width)
    f = sampler.filtered(row, path)
    key = (noise.DRAFT, position, f.ids, root) if own else (noise.TARGET, position, f.ids)
    scores = f.scores + noise.gumbel(params.seed, *key)
    probs = f.probs()
    order = _largest_first(scores, width + 1)
    ahead = scores[order[0]] - (scores[order[1]] if len(order) > 1 else -np.inf)
    found, left = [], probs.copy()
    for rank, i in enumerate(order[:width]):  # Gumbel top-k draws without replacement: each from what is left
        total = left.sum()
        if own and total <= 0:
            break
        q = _spread(left / total, f.ids, n_target) if own else None
        # Nothing said of a drawn token may depend on it; of a keyed one, its lead over the next is the evidence.
        lead = _claim(float(ahead))
        claim = _DRAWN / 2**rank if own else (1 - lead) / 2 if rank else lead
        found.append(Option(int(f.ids[i]), claim, q, (rank, "drawn" if own else _bin(claim))))
        left[i] = 0.0
    return found


def _best(row: Array, width: int) -> list[Option]:
    """The largest logits, largest first, with their probabilities; of allowed tokens alone."""
    ids = [i for i in dict.fromkeys(_largest_first(row, width).tolist()) if row[i] > -np.inf]
    norm = float(np.exp(row - row[ids[0]]).sum())
    probs = [float(np.exp(row[i] - row[ids[0]])) / norm for i in ids]
    return [Option(i, p, None, (rank, _bin(p))) for rank, (i, p) in enumerate(zip(ids, probs, strict=True))]


def _largest_first(scores: npt.NDArray[Any], n: int) -> npt.NDArray[np.int64]:
    """Ids of the `n` largest, largest first; the lowest id of equal ones. Never sorts what is of vocabulary size."""
    n = min(n, scores.size)
    top = int(scores.argmax())
    if n == 1:
        return np.array([top])
    if n <= 4:
        rest, ids = scores.copy(), [top]
        while len(ids) < n:
            rest[ids[-1]] = -np.inf
            ids.append(int(rest.argmax()))
        return np.array(ids)
    cut = np.partition(scores, scores.size - n)[scores.size - n]
    near = np.flatnonzero(scores >= cut)
    return np.asarray(near[np.argsort(-scores[near], kind="stable")][:n])


def _claim(ahead: float) -> float:
    """Of a keyed choice that leads by so much: a draft model that is off by a little changes only close ones."""
    return 1 - 0.5 * math.exp(-ahead / 2)


def _bin(p: float) -> int:
    """A probability's log-odds in whole steps of 0.7."""
    p = min(max(p, 1e-3), 1 - 1e-3)
    return round(math.log(p / (1 - p)) / 0.7)


def _spread(probs: Probs, ids: np.ndarray, n_vocab: int) -> Array:
    q = np.zeros(n_vocab, np.float32)
    q[ids] = probs
    return q


def _tree(levels: Sequence[Sequence[Option]], n_nodes: int, origin: str, by_probability: bool) -> Draft:
    """The chain of first options, with as many of the others as leaves as there is room for.

    Which siblings are taken may depend on probabilities only when nothing was drawn at random; else their order counts.
    """
    depth = len(levels)
    spare = [(i, j) for i, level in enumerate(levels) for j in range(1, len(level))]
    if by_probability:
        reach = np.cumprod([1.0, *(level[0].prob for level in levels)])
        spare.sort(key=lambda e: (-reach[e[0]] * levels[e[0]][e[1]].prob, e))
    leaves = sorted(spare[: max(n_nodes - depth, 0)])
    nodes = [(i - 1, level[0]) for i, level in enumerate(levels)] + [(i - 1, levels[i][j]) for i, j in leaves]
    return Draft(
        tuple(o.token for _, o in nodes),
        tuple(p for p, _ in nodes),
        tuple(o.prob for _, o in nodes),
        (origin,) * len(nodes),
        tuple(o.q for _, o in nodes),
        tuple(o.evidence for _, o in nodes),
    )
