"""One step for all active sequences: draft, one forward, verify and accept, append and go on.

Reading a prompt is the same step: a sequence whose cache lacks more than one token evaluates the next chunk of them,
and drafts nothing until only the last one is left. Beside sequences that decode, chunks are kept short (pace.py).

What a constraint forces joins the drafts of a sequence as long as it has any drafter; without one it is plain decoding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from slipstream.core.offers import Offers, Round, costly
from slipstream.core.pace import Pace, share
from slipstream.core.ports import PLAIN, Choice, Drafter, Model, Outcome, Policy, Room
from slipstream.core.sequence import TARGET_ORIGIN, Emission, Sequence, Token
from slipstream.core.types import PAD, Array, Draft, Span, StepRecord, Verdict
from slipstream.errors import UsageError


@dataclass(frozen=True)
class _Work:
    """What one sequence brings to the forward: `pending` tokens that its cache lacks, then the draft."""

    sequence: Sequence
    pending: tuple[int, ...]
    ready: bool  # the pending tokens end at the last committed one, so that the next token can be chosen
    choice: Choice = PLAIN
    offers: Offers = field(default_factory=Offers)

    @property
    def draft(self) -> Draft:
        return self.choice.draft

    def span(self) -> Span:
        m = len(self.pending)
        parents = [*range(-1, m - 1), *(p + m for p in self.draft.parents)]
        want = range(m - 1, m + len(self.draft)) if self.ready else ()
        return Span(self.sequence.slot, (*self.pending, *self.draft.tokens), parents, want)


class Loop:
    """Owns nothing but the order of things. `clock` gives seconds. Costly drafters are asked after the others."""

    def __init__(self, model: Model, drafters: Seq[Drafter], policy: Policy, clock: Callable[[], float]) -> None:
        self.model, self.policy = model, policy
        self.drafters = sorted(drafters, key=costly)
        self.clock = clock
        self._pace = Pace()

    def begin(self, seq: Sequence) -> None:
        """Start a sequence. What the model already holds in its slot must be a strict beginning of its tokens."""
        if self.model.n_past(seq.slot) >= max(len(seq.tokens), 1):
            raise UsageError("a slot must lack at least the last token of its sequence", "truncate it first")
        self.policy.begin(seq.slot)
        for drafter in self._of(seq):
            if seq.constraint is not None and hasattr(drafter, "constrain"):
                drafter.constrain(seq.slot, seq.constraint.fork())
            drafter.begin(seq.slot, seq.tokens, seq.params, self.model.n_past(seq.slot))

    def end(self, seq: Sequence) -> None:
        for drafter in self._of(seq):
            drafter.end(seq.slot)

    def step(self, active: Seq[Sequence]) -> list[Emission]:
        """One forward for all `active` sequences; each gets its tokens and its record."""
        t0 = self.clock()
        works = self._plan(active)
        t1 = self.clock()
        rows = self.model.forward([w.span() for w in works])
        t2 = self.clock()
        settled = [self._settle(w, r) for w, r in zip(works, rows, strict=True)]
        t3 = self.clock()
        for work, (_, path) in zip(works, settled, strict=True):
            m = len(work.pending)
            self.model.keep(work.sequence.slot, [*range(m), *(m + i for i in path)])
        self._pace.learn(*_read(works), t2 - t1)
        kept = self.clock() - t3  # a rollback can be a forward, so it counts as one
        times = (t1 - t0, t2 - t1 + kept, t3 - t2)
        emissions = [
            Emission(w.sequence, tokens, _record(w, tokens, path, *times))
            for w, (tokens, path) in zip(works, settled, strict=True)
        ]
        self.policy.learn([_outcome(w, e) for w, e in zip(works, emissions, strict=True)], times[1])
        return emissions

    # -- draft ---------------------------------------------------------------------------------------------------

    def _plan(self, active: Seq[Sequence]) -> list[_Work]:
        missing = {s.slot: len(s.tokens) - self.model.n_past(s.slot) for s in active}
        decoding = [s for s in active if missing[s.slot] == 1]
        waiting = [s for s in active if missing[s.slot] != 1]
        drafts = self._draft([s for s in decoding if s.left > 1 and self._of(s)], len(decoding))
        budget = self.model.caps.n_batch - len(decoding) - sum(len(c.draft) for c, _ in drafts.values())
        if decoding:
            budget = min(budget, self._pace.most())
        parts = share([missing[s.slot] for s in waiting], budget)
        read = {s.slot: n for s, n in zip(waiting, parts, strict=True)}
        works = []
        for seq in active:
            if missing[seq.slot] == 1:
                works.append(_Work(seq, (seq.tokens[-1],), True, *drafts.get(seq.slot, ())))
            elif n := read[seq.slot]:
                n_past = self.model.n_past(seq.slot)
                works.append(_Work(seq, tuple(seq.tokens[n_past : n_past + n]), n == missing[seq.slot]))
        return works

    def _of(self, seq: Sequence) -> Seq[Drafter]:
        if not seq.drafting or seq.only is None:
            return self.drafters if seq.drafting else ()
        return [d for d in self.drafters if d.name in seq.only]

    def _draft(self, seqs: Seq[Sequence], n_decoding: int) -> dict[int, tuple[Choice, Offers]]:
        """Per slot: the draft to verify, and what had been proposed."""
        if not seqs:
            return {}
        caps = self.model.caps
        nodes = min(caps.max_nodes, (caps.n_batch - caps.n_slots) // len(seqs))  # every slot has a token of its own
        leaves = caps.max_leaves if caps.trees else 1

        def room(s: Sequence) -> Room:
            most = nodes if s.max_nodes is None else min(nodes, s.max_nodes)
            return Room(s.slot, len(s.tokens), s.left - 1, most, leaves, caps.n_vocab, n_decoding)

        rooms = [room(s) for s in seqs]
        both = zip(seqs, rooms, strict=True)
        offers = [Round(s, room, self._of(s), self.policy, self.clock).ask() for s, room in both]
        choices = self.policy.choose(rooms, [o.drafts for o in offers])
        return {s.slot: both for s, *both in zip(seqs, choices, offers, strict=True)}  # type: ignore[misc]

    # -- verify, keep, record --------------------------------------------------------------------------------------

    def _settle(self, work: _Work, rows: Array) -> tuple[tuple[Token, ...], tuple[int, ...]]:
        """The tokens that this sequence gets, and the accepted nodes of its draft.

        Nothing is kept yet: with a checkpoint that can mean a forward, and other sequences' rows are views.
        """
        seq, draft = work.sequence, work.draft
        if not work.ready:
            return (), ()
        verdict = seq.verify(draft, rows, seq.sampler, len(seq.tokens))
        said = [draft.tokens[i] for i in verdict.path] + [verdict.token]
        end = next((i for i, token in enumerate(said) if token in seq.ends), None)
        if end is not None:  # what was accepted behind an end token was never said
            verdict, said, seq.finish = Verdict(verdict.path[:end], said[end]), said[:end], "stop"
        origins = [draft.origin[i] for i in verdict.path] + [TARGET_ORIGIN]
        places = [0, *(i + 1 for i in verdict.path)]
        tokens = []
        for token, origin, place in zip(said, origins, places, strict=False):
            tokens.append(seq.deliver(token, origin, rows[place]))
            if end is None and seq.finish is not None:  # nor what was accepted behind a completed grammar
                if len(tokens) <= len(verdict.path):
                    verdict = Verdict(verdict.path[: len(tokens)], min(seq.ends, default=verdict.token))
                break
        for drafter in self._of(seq):
            drafter.observe(seq.slot, draft, verdict, rows)
        if seq.finish is None and seq.left <= 0:
            seq.finish = "length"
        return tuple(tokens), verdict.path


def _read(works: Seq[_Work]) -> tuple[int, int]:
    """Prompt tokens in a forward, and sequences that decode beside them."""
    decoding = [w for w in works if w.ready and len(w.pending) == 1]
    return sum(len(w.pending) for w in works) - len(decoding), len(decoding)


def _outcome(work: _Work, emission: Emission) -> Outcome:
    said = [t.id for t in emission.tokens]
    offers = work.offers
    return Outcome(emission.record, offers.drafts, work.draft, said, offers.seconds, offers.lag)


def _record(
    work: _Work, tokens: Seq[Token], path: Seq[int], draft_s: float, forward_s: float, verify_s: float
) -> StepRecord:
    draft, m = work.draft, len(work.pending)
    idle = [i for i, origin in enumerate(draft.origin) if origin == PAD and i not in path]
    origins = Counter(draft.origin)
    origins[PAD] -= len(idle)  # one that was right by chance is a drafted token like others
    return StepRecord(
        slot=work.sequence.slot,
        position=len(work.sequence.tokens) - len(tokens),
        prefilled=m if m > 1 or not work.ready else 0,
        proposed=work.offers.proposed,
        verified=len(draft) - len(idle),
        accepted=len(path),
        emitted=len(tokens),
        depth=max((d for i, d in enumerate(draft.depths()) if i not in idle), default=0),
        accepted_origins=tuple(draft.origin[i] for i in path),
        verified_origins=+origins,
        padded=len(idle),
        expected=work.choice.expected,
        price_s=work.choice.price_s,
        plain_s=work.choice.plain_s,
        draft_s=draft_s,
        forward_s=forward_s,
        verify_s=verify_s,
    )
