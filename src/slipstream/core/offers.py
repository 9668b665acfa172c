"""What drafters propose for one slot, within what its constraint allows, and what that took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from slipstream.core.constrained import GRAMMAR, behind, forced, permitted
from slipstream.core.merge import merge, path_probabilities
from slipstream.core.ports import Drafter, Policy, Room, Source, Want
from slipstream.core.sequence import Sequence as TokenSequence
from slipstream.core.types import EMPTY_DRAFT, Draft

HINT = 8  # tokens that others may guess for a draft model at once


@dataclass
class Offers:
    """The drafts for one slot."""

    drafts: list[Draft] = field(default_factory=list)
    proposed: int = 0  # tokens that the constraint allows, before anything else was cut
    seconds: dict[str, float] = field(default_factory=dict)
    lag: dict[str, int] = field(default_factory=dict)


class Round:
    """Asks the drafters of one sequence, one after another; costly ones come last and know what the others have."""

    def __init__(
        self,
        seq: TokenSequence,
        room: Room,
        drafters: Sequence[Drafter],
        policy: Policy,
        clock: Callable[[], float],
    ) -> None:
        self.seq, self.room, self.drafters, self.policy, self.clock = seq, room, drafters, policy, clock
        self.offers = Offers()

    def ask(self) -> Offers:
        run = self._forced()
        cheap = [d for d in self.drafters if not costly(d)]
        for drafter in cheap:
            self._ask(drafter)
        if run:
            self._go_on(run)
        for drafter in self.drafters[len(cheap) :]:
            self._ask(drafter)
        return self.offers

    def _ask(self, drafter: Drafter) -> None:
        seq, room, offers = self.seq, self.room, self.offers
        lag, skipped = drafter.lag(seq.slot, len(seq.tokens)) if hasattr(drafter, "lag") else (0, 0)
        hinted = bool(getattr(drafter, "takes_hints", False))
        source = Source(drafter.name, costly(drafter), lag, skipped, hinted)
        want = self.policy.want(room, source, offers.drafts)
        nodes, depth = min(want.nodes, room.most), min(want.depth, room.left)
        if nodes <= 0 or depth <= 0:
            return
        width = want.width if room.leaves > 1 else 1
        t = self.clock()
        want = replace(want, nodes=nodes, depth=depth, width=width)
        again = want.read >= len(seq.tokens)
        if hinted:
            want = replace(want, hint=partial(self._hint, drafter.name, tuple(offers.drafts)))
        draft = drafter.propose(seq.slot, seq.tokens, want)
        offers.seconds[drafter.name] = self.clock() - t
        offers.lag[drafter.name] = len(seq.tokens) if again else min(lag, want.read) if want.read else lag
        draft = self._permitted(draft)
        offers.proposed += len(draft)
        draft = draft if width > 1 else draft.spine()
        offers.drafts.append(draft.limit(nodes, depth, None, room.n_vocab))

    def _permitted(self, draft: Draft, path: Sequence[int] = ()) -> Draft:
        if self.seq.constraint is None or not draft.tokens:
            return draft
        return permitted(draft, self.seq.constraint, self.seq.ends, path)

    # -- what a constraint forces ----------------------------------------------------------------------------------

    def _forced(self) -> Draft:
        """The first offer: tokens that cost nothing, as long as anything is drafted at all."""
        if self.seq.constraint is None:
            return EMPTY_DRAFT
        want = self.policy.want(self.room, Source(GRAMMAR), ())
        if want.nodes <= 0 or want.depth <= 0:
            return EMPTY_DRAFT
        run = self._cut(forced(self.seq.constraint))
        if run:
            self.offers.drafts.append(run)
            self.offers.proposed += len(run)
        return run

    def _go_on(self, run: Draft) -> None:
        """What drafters guess behind a forced run extends it; where they differ, as branches."""
        tails = self._peek(run.tokens, replace(self.policy.most, go_on=None, hint=None))
        longer = [self._cut(behind(run, tail)) for tail in tails if tail.tokens]
        if longer:
            best = max(longer, key=lambda d: sum(path_probabilities(d.spine())))
            whole = merge(longer) if self.room.leaves > 1 else best
            self.offers.drafts[0] = whole
            self.offers.proposed += len(whole) - len(run)

    def _peek(self, path: Sequence[int], want: Want) -> list[Draft]:
        peeks = [d.peek for d in self.drafters if hasattr(d, "peek") and d.name in self.offers.seconds]
        return [self._permitted(peek(self.seq.slot, self.seq.tokens, path, want), path) for peek in peeks]

    def _cut(self, draft: Draft) -> Draft:
        most, room = self.policy.most, self.room
        return draft.limit(min(most.nodes, room.most), min(most.depth, room.left), None, room.n_vocab)

    # -- what others say to a costly drafter -----------------------------------------------------------------------

    def _hint(self, name: str, offers: Sequence[Draft], path: Sequence[int], read: int, most: int) -> Sequence[int]:
        """What drafters that cost nothing guess behind the path of one that does, as far as the policy wants it."""

        def guess() -> Sequence[Draft]:
            if most <= 0:
                return ()
            want = Want(min(HINT, most), min(HINT, most))
            if not path:
                return [offer.limit(want.nodes, want.depth) for offer in offers]
            guesses = self._peek(path, want)
            if self.seq.constraint is not None:
                guesses.insert(0, forced(self.seq.constraint, path).limit(want.nodes, want.depth))
            return guesses

        return self.policy.hint(self.room, name, read, guess)


def costly(drafter: Drafter) -> bool:
    return bool(getattr(drafter, "costly", False))
