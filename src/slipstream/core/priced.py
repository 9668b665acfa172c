"""The priced policy: a step is a bet, and a node is worth its price or it is left out.

A step that verifies the nodes S yields 1 + sum of p(v) tokens for D + T(active + |S|) seconds. With a rate of lambda
tokens per second, a node pays when its expected tokens exceed lambda times its extra seconds; when none does, the step
is a plain one. The rate is that of late: a token gained here saves the time that a token takes here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from slipstream.core.calibration import Calibration
from slipstream.core.cost import Curve, Prices
from slipstream.core.ledger import WRITE_OFF, Ledger
from slipstream.core.merge import depth_first, merge, path_probabilities
from slipstream.core.ports import NOTHING, Choice, Outcome, Room, Source, Want
from slipstream.core.types import EMPTY_DRAFT, PAD, Draft

MOST = Want(63, 63, 1)  # chains: on most builds they leave the logits bit for bit as they are
_LOOK = 8  # drafted tokens that the question "one more?" looks ahead
_REACH = (3, 16)  # least and first number of nodes that cheap drafters are asked for
_HOPE = (0.6, 0.85, 0)  # of a costly drafter: how often it is sure enough to go on, and then right; times it was heard
_HEAR = 0.05  # how much one guess moves that
_PATIENCE = 6  # guesses that the first value is worth
_USUAL = 0.2  # how much one text moves what the next one begins with
_READ_SHARE = 0.02, 0.1  # of the time that the rest of the answer takes: for reading a backlog, for reading all again
_READ_FOR = 128  # tokens: no more of the answer is counted on, for a backlog
_READ_LEAST, _READ_FIRST = 64, 128  # tokens that may be read in any case; a prompt that may be read whole
_SERVES = 4  # tokens of a step: the share of a backlog that is charged to it
_WAIT = 12  # steps in which to see what cheap drafters do, before a long backlog is read
_LATELY = 32  # steps
TABLE = 32  # tokens: longer forwards are in no printed price list
_CHEAPER = 0.98  # a larger forward is taken when it costs less than this share of the smaller one


class Bet(NamedTuple):
    """Tokens that a choice is expected to give, for so many seconds."""

    tokens: float
    seconds: float

    def worth(self, rate: float) -> float:
        return self.tokens - rate * self.seconds

    def plus(self, other: Bet) -> Bet:
        return Bet(self.tokens + other.tokens, self.seconds + other.seconds)


class Priced:
    """`prices` are the target's; `drafters` holds those of the models that draft, by drafter name.

    `most` bounds what is asked of a drafter; width 1 keeps drafts chains.
    """

    def __init__(self, prices: Prices, drafters: Mapping[str, Prices] | None = None, most: Want = MOST) -> None:
        self.prices, self.most = prices, most
        self.ledger = Ledger()
        self.calibration = Calibration()
        self._drafters = dict(drafters or {})
        self._hope: dict[tuple[int, str], list[float]] = {}
        self._usual: dict[str, list[float]] = {}  # hope by drafter, over the texts so far
        self._reach: dict[int, int] = {}
        self._steps: dict[int, int] = {}  # by slot, since its sequence began
        self._probes: set[tuple[int, str]] = set()
        self._forwards: dict[tuple[int, str], list[int]] = {}  # of draft models in this step: tokens in each
        self._right: dict[str, deque[bool]] = {}  # by drafter: was its first guess right?
        self._used: dict[str, deque[bool]] = {}  # by drafter: was anything of it verified in the step?
        self._fresh: set[int] = set()  # slots whose text has not been drafted for yet
        self._plain = 1, 0  # slots and context of the last step

    def begin(self, slot: int) -> None:
        self.calibration.begin(slot)
        self._reach.pop(slot, None)
        self._steps[slot] = 0
        self._fresh.add(slot)
        for key in [k for k in self._hope if k[0] == slot]:  # the next text begins with what is usual by now
            usual = self._usual.get(key[1], _HOPE)
            moved = [u + _USUAL * (h - u) for u, h in zip(usual, self._hope.pop(key), strict=True)]
            self._usual[key[1]] = [*moved[:2], 0]

    # -- what to ask for -------------------------------------------------------------------------------------------

    def want(self, room: Room, source: Source, offers: Sequence[Draft]) -> Want:
        if room.slot in self._fresh:
            self._fresh.discard(room.slot)
            if room.active == 1:  # nobody else whose rates these are
                self.ledger.begin()
        if self.prices.strange(room.n_tokens):
            return NOTHING
        if not source.costly:
            reach = min(self._reach.get(room.slot, _REACH[1]), self.most.nodes)
            return Want(reach, min(reach, self.most.depth), self.most.width)
        key = room.slot, source.name
        self._used.setdefault(source.name, deque(maxlen=_LATELY))
        self._forwards.pop(key, None)  # of a step that was broken off
        self._probes.discard(key)
        read = self._readable(room, source)
        tree = self._merged(room, offers)
        each, first = self._draft_seconds(source.name, read, room.n_tokens)
        agreed = self._checkable(room, source.name, tree, read) if source.takes_hints else []
        checking = self._draft_seconds(source.name, read + len(agreed), room.n_tokens)[1] - first
        sure, right, _ = self._hope.setdefault(key, list(self._usual.get(source.name, _HOPE)))
        backlog = (first - each) * (min(_SERVES / min(room.left, WRITE_OFF), 1.0) if read > 2 else 1.0)
        plain = Bet(room.active, self.prices.seconds(room.active, room.n_tokens))
        cheap = self._bets(room, tree)
        # Drafting goes on only where the first guess looks right, so what follows it costs nothing elsewhere.
        ask = [
            Bet(plain.tokens + sure * b.tokens, plain.seconds + each + backlog + checking + sure * b.seconds)
            for b in self._ahead(room, 0, 1.0, right, each, 0.0, agreed)
        ]
        rate = self._rate(plain, [*cheap, *ask], source.name)
        wait = source.lag > _READ_FIRST and self._steps.get(room.slot, 0) < _WAIT
        if not wait and max((b.worth(rate) for b in ask), default=0.0) > max(b.worth(rate) for b in [plain, *cheap]):
            go_on = partial(self._go_on, room, source.name, each)
            return Want(self.most.nodes, self.most.depth, self.most.width, go_on, read)
        if not wait and self.ledger.probe_s >= first * (1 + len(self._probes)):
            self._probes.add(key)
            return Want(2, 2, 1, partial(self._heard, room, source.name, each), read)
        return NOTHING

    def _draft_seconds(self, name: str, read: int, context: int) -> tuple[float, float]:
        """Of one drafted token, and of the first one, which reads so many tokens."""
        prices = self._drafters.get(name)
        if prices is None:  # an unknown price is taken for a tenth of the target's until it is seen
            prices = self._drafters[name] = Prices(Curve((1,), (self.prices.seconds(1, context) / 10,)))
        return prices.seconds(1, context), prices.seconds(read, context)

    def hint(self, room: Room, name: str, read: int, guess: Callable[[], Sequence[Draft]]) -> Sequence[int]:
        chain = EMPTY_DRAFT if (room.slot, name) in self._probes else self._merged(room, guess()).spine()
        agreed = self._checkable(room, name, chain, read)
        self._forwards.setdefault((room.slot, name), []).append(read + len(agreed))
        return chain.tokens[: len(agreed)]

    def _checkable(self, room: Room, name: str, tree: Draft, read: int) -> list[float]:
        """How likely each token of the likeliest path is reached, as far as it pays that a draft model checks it on the
        side: a wider forward for one that may be saved."""
        each, price = self._draft_seconds(name, read, room.n_tokens)
        reach: list[float] = []
        for p in path_probabilities(tree.spine()):
            wider = self._draft_seconds(name, read + len(reach) + 1, room.n_tokens)[1]
            if p * each <= wider - price:
                break
            price = wider
            reach.append(p)
        return reach

    def _readable(self, room: Room, source: Source) -> int:
        """Tokens of its backlog that a drafter may read: a long prompt can cost more than it helps."""
        rest = room.left * self.prices.seconds(1, room.n_tokens)
        if source.lag <= (_READ_FIRST if source.lag == room.n_tokens else _READ_LEAST):
            used = self._used[source.name]  # one that is of use may read what it skipped, out of what was won
            again = source.skipped > room.n_tokens / 4 and sum(used) > max(len(used), 8) / 2
            everything = self._draft_seconds(source.name, room.n_tokens, room.n_tokens)[1]
            again = again and everything < _READ_SHARE[1] * rest and self.ledger.affords(everything)
            return room.n_tokens if again else max(source.lag, 1)
        many = self._draft_seconds(source.name, _READ_LEAST, room.n_tokens)[1]
        budget = _READ_SHARE[0] * rest * min(_READ_FOR / room.left, 1.0)
        return min(source.lag, max(int(_READ_LEAST * budget / many), _READ_LEAST))

    def _go_on(self, room: Room, name: str, each: float, path: Sequence[tuple[Hashable, float]]) -> bool:
        """Whether a draft model that has this path should draft another token."""
        likely, expected = 1.0, float(room.active)
        for evidence, claim in path:
            p = self.calibration.probability(room.slot, name, evidence, claim)
            likely *= p
            expected += likely
        hope = self._hope[room.slot, name]
        plain = Bet(room.active, self.prices.seconds(room.active, room.n_tokens))
        stop = Bet(expected, self._least(room.active + len(path), room.n_tokens))
        ahead = [stop.plus(b) for b in self._ahead(room, len(path), likely, hope[1], each, each)]
        rate = self._rate(plain, [stop, *ahead], name)
        more = any(b.worth(rate) > stop.worth(rate) for b in ahead)
        if len(path) == 1:
            hope[2] += 1
            hope[0] += max(_HEAR, 1 / (hope[2] + _PATIENCE)) * (more - hope[0])
        else:  # what the drafter is sure of, as calibrated, says the same as the outcome, with less chance in it
            hope[1] += _HEAR * (p - hope[1])
        return more

    def _heard(self, room: Room, name: str, each: float, path: Sequence[tuple[Hashable, float]]) -> bool:
        """A probe hears one guess, and whether the drafter would have gone on."""
        self._go_on(room, name, each, path)
        return False

    def _ahead(
        self,
        room: Room,
        depth: int,
        likely: float,
        right: float,
        each: float,
        next_s: float,
        agreed: Sequence[float] = (),
    ) -> list[Bet]:
        """What one to _LOOK more tokens of a path would add, after `depth` nodes; `agreed`: how likely each of them is
        to be found in a forward that was made already, but for the first."""
        base = self._least(room.active + depth, room.n_tokens)
        bets, gain, drafting = [], 0.0, next_s
        for j in range(1, min(_LOOK, room.left - depth, room.most - depth) + 1):
            likely *= right
            gain += likely
            bets.append(Bet(gain, drafting + self._least(room.active + depth + j, room.n_tokens) - base))
            drafting += each * (1 - agreed[j - 1] if j <= len(agreed) else 1)
        return bets

    # -- what to verify --------------------------------------------------------------------------------------------

    def choose(self, rooms: Sequence[Room], offers: Sequence[Sequence[Draft]]) -> list[Choice]:
        trees = [self._merged(room, own) for room, own in zip(rooms, offers, strict=True)]
        active, context = rooms[0].active, sum(r.n_tokens for r in rooms) // len(rooms)
        plain_s = self.prices.seconds(active, context)
        if not any(len(tree) for tree in trees):
            return [Choice(EMPTY_DRAFT, 1.0, plain_s, plain_s)] * len(rooms)
        pool = sorted((-p, r, i) for r, tree in enumerate(trees) for i, p in enumerate(path_probabilities(tree)))
        total, bets = float(active), [Bet(active, plain_s)]
        for size, (minus_p, _, _) in enumerate(pool, 1):
            total -= minus_p
            bets.append(Bet(total, self._least(active + size, context)))
        rate = self._rate(bets[0], bets)
        n = max(range(len(bets)), key=lambda i: bets[i].worth(rate))
        fill = self._cheapest(active + n, context) - active if n else 0
        taken = pool[: max(n, fill)]
        price = self.prices.seconds(active + len(taken), context)
        choices = []
        for r, tree in enumerate(trees):
            nodes = sorted(i for _, room, i in taken if room == r)
            expected = 1 - sum(p for p, room, _ in taken if room == r)
            draft = depth_first(tree if len(nodes) == len(tree) else tree.select(nodes)) if nodes else EMPTY_DRAFT
            choices.append(Choice(draft, expected, price, plain_s))
        return _pad(choices, fill - len(taken), rooms) if len(taken) < fill else choices

    def _merged(self, room: Room, offers: Sequence[Draft]) -> Draft:
        tree = merge(offers, partial(self.calibration.probability, room.slot))
        if self.most.width == 1 or room.leaves == 1:
            tree = tree.spine()
        return tree.limit(room.most, room.left, room.leaves, room.n_vocab)

    def _bets(self, room: Room, tree: Draft) -> list[Bet]:
        """Verifying the best 1, 2, … nodes of a tree."""
        total, bets = float(room.active), []
        for size, p in enumerate(path_probabilities(tree), 1):
            total += p
            bets.append(Bet(total, self._least(room.active + size, room.n_tokens)))
        return bets

    def _rate(self, plain: Bet, others: Sequence[Bet], name: str = "") -> float:
        """Lambda: the rate of late, but no more than what can be had now, nor less than plain decoding gives. For a
        costly drafter, no less than what is reached without it either: a plain step may be the way to better ones."""
        can = max((b.tokens / b.seconds for b in others), default=0.0)
        without = self.ledger.rate(name) if name else 0.0
        rate = max(min(self.ledger.rate(), can), plain.tokens / plain.seconds, without)
        return rate * (1 + self.ledger.margin(plain.seconds))

    def _least(self, n: int, context: int) -> float:
        """The price of a forward of `n` tokens, or of the larger one that is taken instead."""
        return self.prices.seconds(self._cheapest(n, context), context)

    def _cheapest(self, n: int, context: int) -> int:
        """The size from `n` up that costs clearly less, of the next two and the next multiple of 4; else `n`."""
        seconds = self.prices.seconds
        best, here = n, seconds(n, context) * _CHEAPER
        for m in {n + 1, n + 2, n + 4 - n % 4}:
            if (s := seconds(m, context)) < here:
                best, here = m, s
        return best

    # -- what came of it -------------------------------------------------------------------------------------------

    def learn(self, outcomes: Sequence[Outcome], seconds: float) -> None:
        steps = [o for o in outcomes if not o.record.prefilled]
        if not steps:
            return
        context = sum(o.record.position for o in steps) // len(steps)
        size = sum(1 + o.record.verified + o.record.padded for o in steps)
        if len(steps) == len(outcomes):
            self.prices.observe(size, context, seconds)
        else:  # with a prompt in it, a forward says nothing of its price
            seconds = self.prices.seconds(size, context)
        plain_s = self.prices.seconds(len(steps), context) / len(steps)
        probe_s = drafting = invested = 0.0
        for o in steps:
            spent = self._drafted(o, context)
            probe_s, invested = probe_s + spent[0], invested + spent[1]
            drafting += sum(o.draft_s.values())
            for offer in o.offers:
                self._judge(o.record.slot, offer, o.said)
            self._stretch(o)
            self._steps[o.record.slot] = self._steps.get(o.record.slot, 0) + 1
            for name in {*self._used, *(d.origin[0] for d in o.offers if d.tokens)}:
                self._used.setdefault(name, deque(maxlen=_LATELY)).append(name in o.record.verified_origins)
        self._plain = len(steps), context
        self._probes.clear()
        bet = size > len(steps) or drafting > probe_s
        tokens, asked = sum(o.record.emitted for o in steps), {name for o in steps for name in o.draft_s}
        idle = [name for name in self._drafters if name not in asked or probe_s]
        self.ledger.book(tokens, seconds + drafting, plain_s, bet, probe_s, invested, idle)

    def _drafted(self, o: Outcome, context: int) -> tuple[float, float]:
        """Follow the prices of draft models; seconds that went into probes, and into reading a backlog."""
        probe_s = invested = 0.0
        for name, spent in o.draft_s.items():
            sizes, prices = self._forwards.pop((o.record.slot, name), []), self._drafters.get(name)
            if prices is None:
                continue
            offer = next((d for d in o.offers if d.tokens and d.origin[0] == name), EMPTY_DRAFT)
            if offer.tokens and not sizes:  # it takes no hints: a forward for each token
                sizes = [max(o.lag.get(name, 1), 1), *[1] * (max(offer.depths()) - 1)]
            due = [prices.seconds(size, context) for size in sizes]
            if due:
                prices.rescale(spent / sum(due))
            if (o.record.slot, name) in self._probes:
                self._probes.discard((o.record.slot, name))
                probe_s += spent
            elif due and o.lag.get(name, 1) > 2:
                invested += max(spent - sum(due[1:]) - prices.seconds(1, context), 0.0)
        return probe_s, invested

    def _judge(self, slot: int, offer: Draft, said: Sequence[int]) -> None:
        """A guess whose place was reached was right or wrong, verified or not: cheap drafters are heard for free."""
        kids, node = offer.children(), -1
        if not kids[0]:
            return
        name = offer.origin[kids[0][0]]
        for depth, token in enumerate(said):
            found = -1
            for child in kids[node + 1]:
                right = offer.tokens[child] == token
                self.calibration.learn(slot, offer.origin[child], offer.evidence[child], offer.prob[child], right)
                found = child if right else found
            if depth == 0:
                self._right.setdefault(name, deque(maxlen=_LATELY)).append(kids[0][0] == found)
            if found < 0 or not kids[found + 1]:
                return
            node = found

    def _stretch(self, o: Outcome) -> None:
        """Cheap drafters are asked for about twice as much as was of use lately."""
        slot, least = o.record.slot, _REACH[0]
        reach = self._reach.get(slot, _REACH[1])
        useful = 2 * o.record.accepted
        self._reach[slot] = min(max(useful + least, reach - 2, least), self.most.nodes)

    def table(self, context: int) -> dict[str, list[tuple[int, float]]]:
        """The price lists as they are now: seconds of forwards of 1, 2, … tokens, of the target and of draft models."""
        lists = {"target": self.prices, **self._drafters}
        return {
            name: [(n, p.seconds(n, context)) for n in range(1, min(p.curve.sizes[-1], TABLE) + 1)]
            for name, p in lists.items()
        }

    def report(self) -> dict[str, str]:
        """A word on each drafter: active when something of it was verified in the last steps, else paused and why."""
        active, context = self._plain
        plain = self.prices.seconds(active, context)
        words = {}
        for name, used in self._used.items():
            heard = self._right.get(name, ())
            right = f"{100 * sum(heard) / max(len(heard), 1):.0f} % of its last {len(heard)} first guesses were right"
            extra = self._least(active + 1, context) - plain
            extra += self._drafters[name].seconds(1, context) if name in self._drafters else 0.0
            needed = f"a guess pays here from {100 * extra * active / plain:.0f} % on"
            share = f"verified in {sum(used)} of the last {len(used)} steps"
            lately = f"{right}; {needed}" if heard else "it had nothing to say"
            words[name] = f"active: {share}; {right}" if any(used) and heard else f"paused: {lately}"
        return words


def _pad(choices: list[Choice], n: int, rooms: Sequence[Room]) -> list[Choice]:
    """Bring the forward up to a cheaper size by `n` tokens that nobody believes in, behind the first draft's chain."""
    for r, (choice, room) in enumerate(zip(choices, rooms, strict=True)):
        draft = choice.draft
        if draft.tokens and len(draft) + n <= room.most and max(draft.depths()) + n <= room.left:
            last = draft.depths().index(max(draft.depths()))
            parents = [last, *range(len(draft), len(draft) + n - 1)]
            padded = Draft(
                draft.tokens + (0,) * n,
                draft.parents + tuple(parents),
                draft.prob + (0.0,) * n,
                draft.origin + (PAD,) * n,
                draft.q + (None,) * n,
                draft.evidence + (None,) * n,
            )
            choices[r] = replace(choice, draft=depth_first(padded))
            break
    return choices
