"""One step for all active sequences: draft, one forward, verify and accept, append and go on.

Reading a prompt is the same step: a sequence whose cache lacks more than one token evaluates the next chunk of them,
and drafts nothing until only the last one is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from slipstream.core.ports import Drafter, Model, Policy, Room, Want
from slipstream.core.sequence import TARGET_ORIGIN, Emission, Sequence, Token
from slipstream.core.types import EMPTY_DRAFT, Array, Draft, Span, StepRecord, Verdict
from slipstream.errors import UsageError


@dataclass(frozen=True)
class _Work:
    """What one sequence brings to the forward: `pending` tokens that its cache lacks, then the draft."""

    sequence: Sequence
    pending: tuple[int, ...]
    ready: bool  # the pending tokens end at the last committed one, so that the next token can be chosen
    draft: Draft
    proposed: int

    def span(self) -> Span:
        m = len(self.pending)
        parents = [*range(-1, m - 1), *(p + m for p in self.draft.parents)]
        want = range(m - 1, m + len(self.draft)) if self.ready else ()
        return Span(self.sequence.slot, (*self.pending, *self.draft.tokens), parents, want)


class Loop:
    """Owns nothing but the order of things. `clock` gives seconds."""

    def __init__(self, model: Model, drafter: Drafter | None, policy: Policy, clock: Callable[[], float]) -> None:
        self.model, self.drafter, self.policy = model, drafter, policy
        self.clock = clock

    def begin(self, seq: Sequence) -> None:
        """Start a sequence. What the model already holds in its slot must be a strict beginning of its tokens."""
        if self.model.n_past(seq.slot) >= max(len(seq.tokens), 1):
            raise UsageError("a slot must lack at least the last token of its sequence", "truncate it first")
        if self.drafter is not None and seq.drafting:
            self.drafter.begin(seq.slot, seq.tokens, seq.params, self.model.n_past(seq.slot))

    def end(self, seq: Sequence) -> None:
        if self.drafter is not None and seq.drafting:
            self.drafter.end(seq.slot)

    def step(self, active: Seq[Sequence]) -> list[Emission]:
        """One forward for all `active` sequences; each gets its tokens and its record."""
        t0 = self.clock()
        works = self._plan(active)
        t1 = self.clock()
        rows = self.model.forward([w.span() for w in works])
        t2 = self.clock()
        settled = [self._settle(w, r) for w, r in zip(works, rows, strict=True)]
        for work, (_, path) in zip(works, settled, strict=True):
            m = len(work.pending)
            self.model.keep(work.sequence.slot, [*range(m), *(m + i for i in path)])
        times = (t1 - t0, t2 - t1, self.clock() - t2)
        emissions = [
            Emission(w.sequence, tokens, _record(w, tokens, path, *times))
            for w, (tokens, path) in zip(works, settled, strict=True)
        ]
        self.policy.learn([e.record for e in emissions])
        return emissions

    # -- draft ---------------------------------------------------------------------------------------------------

    def _plan(self, active: Seq[Sequence]) -> list[_Work]:
        missing = {s.slot: len(s.tokens) - self.model.n_past(s.slot) for s in active}
        decoding = [s for s in active if missing[s.slot] == 1]
        drafts = self._draft([s for s in decoding if self._may_draft(s)])
        budget = self.model.caps.n_batch - len(decoding) - sum(len(d) for d, _ in drafts.values())
        works = []
        for seq in active:
            n_past = self.model.n_past(seq.slot)
            if missing[seq.slot] == 1:
                draft, proposed = drafts.get(seq.slot, (EMPTY_DRAFT, 0))
                works.append(_Work(seq, (seq.tokens[-1],), True, draft, proposed))
            elif budget > 0:
                chunk = tuple(seq.tokens[n_past : n_past + budget])
                budget -= len(chunk)
                works.append(_Work(seq, chunk, n_past + len(chunk) == len(seq.tokens), EMPTY_DRAFT, 0))
        return works

    def _may_draft(self, seq: Sequence) -> bool:
        return self.drafter is not None and seq.drafting and seq.left > 1

    def _draft(self, seqs: Seq[Sequence]) -> dict[int, tuple[Draft, int]]:
        """Per slot: the draft to verify, and how many tokens had been proposed."""
        if not seqs or self.drafter is None:
            return {}
        caps = self.model.caps
        share = min(caps.max_nodes, (caps.n_batch - caps.n_slots) // len(seqs))  # every slot has a token of its own
        rooms = [Room(s.slot, len(s.tokens), s.left - 1, self.drafter.name) for s in seqs]
        wants = [
            Want(min(w.nodes, share), min(w.depth, room.left), w.width if caps.trees else 1)
            for w, room in zip(self.policy.plan(rooms), rooms, strict=True)
        ]
        proposed, drafts = [], []
        for seq, want in zip(seqs, wants, strict=True):
            offered = want.nodes > 0 and want.depth > 0
            draft = self.drafter.propose(seq.slot, seq.tokens, want) if offered else EMPTY_DRAFT
            proposed.append(len(draft))
            if want.width == 1:
                draft = draft.spine()
            drafts.append(draft.limit(want.nodes, want.depth, caps.max_leaves, caps.n_vocab))
        chosen = self.policy.choose(rooms, drafts)
        return {s.slot: (d, n) for s, d, n in zip(seqs, chosen, proposed, strict=True)}

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
        if self.drafter is not None and seq.drafting:
            self.drafter.observe(seq.slot, draft, verdict, rows)
        origins = [draft.origin[i] for i in verdict.path] + [TARGET_ORIGIN]
        places = [0, *(i + 1 for i in verdict.path)]
        tokens = tuple(seq.deliver(t, o, rows[p]) for t, o, p in zip(said, origins, places, strict=False))
        if seq.finish is None and seq.left <= 0:
            seq.finish = "length"
        return tokens, verdict.path


def _record(
    work: _Work, tokens: Seq[Token], path: Seq[int], draft_s: float, forward_s: float, verify_s: float
) -> StepRecord:
    draft, m = work.draft, len(work.pending)
    return StepRecord(
        slot=work.sequence.slot,
        position=len(work.sequence.tokens) - len(tokens),
        prefilled=m if m > 1 or not work.ready else 0,
        proposed=work.proposed,
        verified=len(draft),
        accepted=len(path),
        emitted=len(tokens),
        depth=max(draft.depths(), default=0),
        accepted_origins=tuple(draft.origin[i] for i in path),
        verified_origins=Counter(draft.origin) if draft.tokens else {},
        draft_s=draft_s,
        forward_s=forward_s,
        verify_s=verify_s,
    )
