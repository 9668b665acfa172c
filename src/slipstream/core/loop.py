"""One step for all active sequences: draft, one forward, verify and accept, append and go on.

Reading a prompt is the same step: a sequence whose cache lacks more than one token evaluates the next chunk of them,
and drafts nothing until only the last one is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import partial

from slipstream.core.ports import PLAIN, Choice, Drafter, Model, Outcome, Policy, Room, Source, Want
from slipstream.core.sequence import TARGET_ORIGIN, Emission, Sequence, Token
from slipstream.core.types import PAD, Array, Draft, Span, StepRecord, Verdict
from slipstream.errors import UsageError

HINT = 8  # tokens that others may guess for a draft model at once


@dataclass
class _Offers:
    """What the drafters proposed for one slot, and what that took."""

    drafts: list[Draft] = field(default_factory=list)
    proposed: int = 0  # tokens, before anything was cut
    seconds: dict[str, float] = field(default_factory=dict)
    lag: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Work:
    """What one sequence brings to the forward: `pending` tokens that its cache lacks, then the draft."""

    sequence: Sequence
    pending: tuple[int, ...]
    ready: bool  # the pending tokens end at the last committed one, so that the next token can be chosen
    choice: Choice = PLAIN
    offers: _Offers = field(default_factory=_Offers)

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
        self.drafters = sorted(drafters, key=_costly)
        self.clock = clock

    def begin(self, seq: Sequence) -> None:
        """Start a sequence. What the model already holds in its slot must be a strict beginning of its tokens."""
        if self.model.n_past(seq.slot) >= max(len(seq.tokens), 1):
            raise UsageError("a slot must lack at least the last token of its sequence", "truncate it first")
        self.policy.begin(seq.slot)
        for drafter in self._of(seq):
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
        drafts = self._draft([s for s in decoding if self._of(s) and s.left > 1], len(decoding))
        budget = self.model.caps.n_batch - len(decoding) - sum(len(c.draft) for c, _ in drafts.values())
        works = []
        for seq in active:
            n_past = self.model.n_past(seq.slot)
            if missing[seq.slot] == 1:
                works.append(_Work(seq, (seq.tokens[-1],), True, *drafts.get(seq.slot, ())))
            elif budget > 0:
                chunk = tuple(seq.tokens[n_past : n_past + budget])
                budget -= len(chunk)
                works.append(_Work(seq, chunk, n_past + len(chunk) == len(seq.tokens)))
        return works

    def _of(self, seq: Sequence) -> Seq[Drafter]:
        return self.drafters if seq.drafting else ()

    def _draft(self, seqs: Seq[Sequence], n_decoding: int) -> dict[int, tuple[Choice, _Offers]]:
        """Per slot: the draft to verify, and what had been proposed."""
        if not seqs:
            return {}
        caps = self.model.caps
        share = min(caps.max_nodes, (caps.n_batch - caps.n_slots) // len(seqs))  # every slot has a token of its own
        leaves = caps.max_leaves if caps.trees else 1
        rooms = [Room(s.slot, len(s.tokens), s.left - 1, share, leaves, caps.n_vocab, n_decoding) for s in seqs]
        offers = [self._ask(seq, room) for seq, room in zip(seqs, rooms, strict=True)]
        choices = self.policy.choose(rooms, [o.drafts for o in offers])
        return {s.slot: both for s, *both in zip(seqs, choices, offers, strict=True)}  # type: ignore[misc]

    def _ask(self, seq: Sequence, room: Room) -> _Offers:
        offers = _Offers()
        for drafter in self.drafters:
            lag, skipped = drafter.lag(seq.slot, len(seq.tokens)) if hasattr(drafter, "lag") else (0, 0)
            hinted = bool(getattr(drafter, "takes_hints", False))
            source = Source(drafter.name, _costly(drafter), lag, skipped, hinted)
            want = self.policy.want(room, source, offers.drafts)
            nodes, depth = min(want.nodes, room.most), min(want.depth, room.left)
            if nodes <= 0 or depth <= 0:
                continue
            width = want.width if room.leaves > 1 else 1
            t = self.clock()
            want = replace(want, nodes=nodes, depth=depth, width=width)
            again = want.read >= len(seq.tokens)
            if hinted:
                want = replace(want, hint=partial(self._hint, seq, room, drafter.name, tuple(offers.drafts)))
            draft = drafter.propose(seq.slot, seq.tokens, want)
            offers.seconds[drafter.name] = self.clock() - t
            offers.lag[drafter.name] = len(seq.tokens) if again else min(lag, want.read) if want.read else lag
            offers.proposed += len(draft)
            draft = draft if width > 1 else draft.spine()
            offers.drafts.append(draft.limit(nodes, depth, None, room.n_vocab))
        return offers

    def _hint(
        self, seq: Sequence, room: Room, name: str, offers: Seq[Draft], path: Seq[int], read: int, most: int
    ) -> Seq[int]:
        """What drafters that cost nothing guess behind the path of one that does, as far as the policy wants it."""

        def guess() -> Seq[Draft]:
            if most <= 0:
                return ()
            want = Want(min(HINT, most), min(HINT, most))
            if not path:
                return [offer.limit(want.nodes, want.depth) for offer in offers]
            peeks = [d.peek for d in self._of(seq) if hasattr(d, "peek")]
            return [peek(seq.slot, seq.tokens, path, want) for peek in peeks]

        return self.policy.hint(room, name, read, guess)

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
        for drafter in self._of(seq):
            drafter.observe(seq.slot, draft, verdict, rows)
        origins = [draft.origin[i] for i in verdict.path] + [TARGET_ORIGIN]
        places = [0, *(i + 1 for i in verdict.path)]
        tokens = tuple(seq.deliver(t, o, rows[p]) for t, o, p in zip(said, origins, places, strict=False))
        if seq.finish is None and seq.left <= 0:
            seq.finish = "length"
        return tokens, verdict.path


def _costly(drafter: Drafter) -> bool:
    return bool(getattr(drafter, "costly", False))


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
