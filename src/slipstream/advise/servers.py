"""A workload against one server, or against two in turn: speeds, first tokens, acceptance, and their ratio.

tok/s: tokens of an answer after its first, over the seconds that they took, as measure.py counts; the same prompts of
the same runs for both servers. First token: of each prompt's first run, as later ones find their prompt in the server's
cache. Two servers take turns at going first, so that what drifts hits both alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.advise import measure
from slipstream.advise.counters import Counters, Reading, between, combine, count, from_timings, total
from slipstream.advise.endpoint import Answer, Ask, Endpoint
from slipstream.advise.measure import Work
from slipstream.core.stats import Stats
from slipstream.errors import InputError, SlipstreamError
from slipstream.generation import Result, Usage

NAMES = ("A", "B")
ALL = "all"
GIVE_UP = 5  # failures of one server in a row
_LEARNS = 0.1  # more of the drafts accepted in later runs than in the first
_CACHED = 0.85  # of the prompts' tokens; less may be the chat template, which all prompts share
_LAG = (0.0, 0.05, 0.2)  # seconds in which a server's counters may catch up with its answer
_NEVER = lambda: False  # noqa: E731


@dataclass(frozen=True)
class Try:
    """One request to one server, with an error instead of an answer when it failed."""

    answer: Answer | None = None
    counters: Counters = field(default_factory=Counters)
    error: str = ""
    hint: str = ""

    @property
    def timed(self) -> bool:
        """Whether it says something about speed."""
        a = self.answer
        return a is not None and a.tokens is not None and a.tokens > 1 and bool(a.decode_s)

    def as_dict(self) -> dict[str, Any]:
        a = self.answer
        names = (
            "tokens",
            "prompt_tokens",
            "cached",
            "first_token_s",
            "decode_s",
            "finish_reason",
            "unreadable",
            "timings",
        )
        known = {} if a is None else {name: getattr(a, name) for name in names}
        return known | (
            {"error": self.error, "hint": self.hint} if self.error else {"counters": self.counters.as_dict()}
        )


@dataclass(frozen=True)
class Side:
    """One server on one kind of work. `server_tps` is its own word on its speed."""

    tps: float | None
    spread: list[float]
    first_token_s: float | None
    server_tps: float | None
    counters: Counters
    answers: int
    failed: int

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"counters": self.counters.as_dict()}


@dataclass(frozen=True)
class Row:
    """`ratio`: the second server's speed over the first one's. `same_text`: so many of `compared` pairs of answers."""

    kind: str
    prompts: int
    sides: list[Side]
    ratio: float | None = None
    ratio_spread: list[float] | None = None
    interval: list[float] | None = None
    same_text: int | None = None
    compared: int = 0

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"sides": [side.as_dict() for side in self.sides]}


class Session:
    """One or two servers and the prompts for them."""

    def __init__(
        self, endpoints: Sequence[Endpoint], works: Sequence[Work], max_tokens: int, raw: bool = False
    ) -> None:
        self.endpoints, self.works, self.max_tokens, self.raw = endpoints, list(works), max_tokens, raw
        self.left_out: list[tuple[str, str]] = []  # kind, why
        self.tries: list[list[list[Try]]] = []  # by prompt, run and server
        self.gave_up = False
        self._readings: list[Reading | None] = []  # the first one of each server
        self._in_a_row = [0] * len(endpoints)

    def open(self) -> None:
        """Reach the servers, warm them up with a prompt that is in no workload, and see what they take and tell.

        Raises as Endpoint.ask does for a server that cannot be used, and InputError when no prompt is left.
        """
        chats = [w for w in self.works if Ask.of(w, 1, self.raw).path != "completions"]
        for endpoint in self.endpoints:
            endpoint.connect()
            endpoint.ask(Ask.of(Work("", "Say hello."), min(8, self.max_tokens), raw=not chats))
            self._leave_out_gaps(endpoint)
            self._readings.append(endpoint.metrics())
        if not self.works:
            raise InputError(f"no prompt is left: {self.left_out[0][1]}", "give a workload without gaps to fill")
        self.tries = [[] for _ in self.works]

    def _leave_out_gaps(self, endpoint: Endpoint) -> None:
        gaps = [work for work in self.works if work.middle is not None]
        if not gaps:
            return
        if why := _refuses_gaps(endpoint, gaps[0]):
            self.left_out += [(work.kind, f"a gap to fill, and {endpoint.address} {why}") for work in gaps]
            self.works = [work for work in self.works if work.middle is None]

    def rounds(self, n: int, stopped: Callable[[], bool] = _NEVER) -> Iterator[Work]:
        """Yields each prompt after every server has answered it, or failed to."""
        asks = [Ask.of(work, self.max_tokens, self.raw) for work in self.works]
        for number in range(n):
            for i, work in enumerate(self.works):
                order = list(range(len(self.endpoints)))
                done: dict[int, Try] = {}
                for e in order if (number + i) % 2 == 0 else reversed(order):
                    found = self._try(e, asks[i], stopped)
                    if found is None:
                        return
                    done[e] = found
                self.tries[i].append([done[e] for e in order])
                yield work
                if max(self._in_a_row) >= GIVE_UP:
                    self.gave_up = True
                    return

    def _try(self, e: int, ask: Ask, stopped: Callable[[], bool]) -> Try | None:
        endpoint = self.endpoints[e]
        before = endpoint.metrics() if self._readings[e] is not None else None
        try:
            answer = endpoint.ask(ask, stopped)
        except SlipstreamError as error:
            self._in_a_row[e] += 1
            return Try(error=error.message, hint=error.hint)
        self._in_a_row[e] = 0
        if answer is None:
            return None
        return Try(answer, self._counted(endpoint, before, answer))

    def _counted(self, endpoint: Endpoint, before: Reading | None, answer: Answer) -> Counters:
        said = from_timings(answer.timings, answer.tokens)
        if before is None:
            return said
        for pause in _LAG:
            endpoint.pause(pause)
            found, alone = between(before, after := endpoint.metrics(), answer.tokens)
            counters, alone = combine(said, found, alone)
            if alone:
                break
        if after is None:
            endpoint.note("its /metrics could not always be read: what it counted then is left out")
        if not alone:
            endpoint.note("other requests ran on it at the same time: what /metrics counted meanwhile is left out")
        return counters

    # -- what came of it -----------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """A row for each kind, in order of appearance, and one for all where there are several."""
        kinds = dict.fromkeys(work.kind for work, runs in zip(self.works, self.tries, strict=True) if runs)
        found = [self._row(kind, [i for i, w in enumerate(self.works) if w.kind == kind]) for kind in kinds]
        return [*found, self._row(ALL, range(len(self.works)))] if len(found) > 1 else found

    def _row(self, kind: str, which: Sequence[int]) -> Row:
        mine = [self.tries[i] for i in which if self.tries[i]]
        timed = [[run for run in runs if all(t.timed for t in run)] for runs in mine]
        samples = [measure.Sample(kind, tuple(map(_pair, runs)), None) for runs in timed if runs]
        speeds = measure.row(kind, samples) if samples else None
        sides = [_side(e, mine, speeds) for e in range(len(self.endpoints))]
        if len(self.endpoints) == 1:
            return Row(kind, len(mine), sides)
        texts = [[t.answer.text for t in run if t.answer] for runs in mine for run in runs]
        pairs = [pair for pair in texts if len(pair) == 2]
        same = sum(a == b for a, b in pairs)
        if speeds is None:
            return Row(kind, len(mine), sides, same_text=same, compared=len(pairs))
        spread = speeds.speedup_spread
        return Row(kind, len(mine), sides, speeds.speedup, spread, speeds.interval, same, len(pairs))

    def failures(self) -> list[dict[str, Any]]:
        """What failed, and where."""
        return [
            {
                "server": NAMES[e],
                "kind": self.works[i].kind,
                "prompt": i,
                "run": number,
                "error": t.error,
                "hint": t.hint,
            }
            for i, runs in enumerate(self.tries)
            for number, run in enumerate(runs)
            for e, t in enumerate(run)
            if t.error
        ]

    def notes(self, e: int) -> list[str]:
        """What a reader of the numbers of one server has to know."""
        endpoint = self.endpoints[e]
        runs = [[run[e] for run in runs] for runs in self.tries]
        answers = [t.answer for tries in runs for t in tries if t.answer is not None]
        if answers and all(a.tokens is None for a in answers):
            endpoint.note("it says neither in usage nor in timings how many tokens an answer has: no speed can be told")
        if any(a.decode_s is None and (a.tokens or 0) > 2 for a in answers):
            endpoint.note("some answers came all at once (it, or a proxy, holds the stream back): they have no speed")
        if bad := sum(a.unreadable for a in answers):
            endpoint.note(f"{bad} lines of its streams could not be read")
        firsts = [a for tries in runs if tries and (a := tries[0].answer) and a.prompt_tokens and a.cached is not None]
        read, known = sum(a.prompt_tokens or 0 for a in firsts), sum(a.cached or 0 for a in firsts)
        if read and known / read > _CACHED:
            endpoint.note(
                f"{100 * known / read:.0f} % of the prompts' tokens were in its cache before the first run: "
                "first tokens come sooner than for new prompts; start it anew to see those"
            )
        everything = total([t.counters for tries in runs for t in tries])
        reading = self._readings[e]
        if reading is not None and reading.gauges:
            endpoint.note(_gauges(endpoint.metrics() or reading))
        elif answers and everything.drafted is None:
            endpoint.note("it does not tell what it drafted" + (" (if it drafts)" if everything.unsaid else ""))
        first = total([t.counters for tries in runs for t in tries[:1]]).acceptance_rate
        later = total([t.counters for tries in runs for t in tries[1:]]).acceptance_rate
        if first is not None and later is not None and later - first > _LEARNS:
            endpoint.note(
                f"{100 * first:.0f} % of its drafts were accepted in the first run, {100 * later:.0f} % in later ones: "
                "it remembers its answers; take --runs 1 and start it anew before"
            )
        return endpoint.notes


def _refuses_gaps(endpoint: Endpoint, gap: Work) -> str:
    """Why the server cannot fill gaps; "" when it can. Some take a suffix and ignore it: the prompt's length tells."""
    ask = Ask.of(gap, 1)
    before = Ask(ask.path, {key: value for key, value in ask.body.items() if key != "suffix"})
    try:
        answers = [endpoint.ask(each) for each in (before, ask)]
    except SlipstreamError as e:
        return f"does not take its suffix: {e.message}"
    alone, both = (a.prompt_tokens if a else None for a in answers)
    if alone is None or both is None:
        return "does not say whether it reads its suffix"
    return "" if both > alone else "does not read its suffix"


def _side(e: int, mine: Sequence[Sequence[Sequence[Try]]], speeds: measure.Row | None) -> Side:
    tries = [run[e] for runs in mine for run in runs]
    firsts = [a.first_token_s for runs in mine if (a := runs[0][e].answer) and a.first_token_s is not None]
    own = [own for t in tries if t.answer and (own := _own_time(t.answer.timings))]
    seconds = sum(seconds for _, seconds in own)
    failed = sum(bool(t.error) for t in tries)
    return Side(
        tps=None if speeds is None else (speeds.spec_tps if e else speeds.plain_tps),
        spread=[] if speeds is None else (speeds.spec_spread if e else speeds.plain_spread),
        first_token_s=statistics.median(firsts) if firsts else None,
        server_tps=sum(tokens for tokens, _ in own) / seconds if seconds else None,
        counters=total([t.counters for t in tries]),
        answers=len(tries) - failed,
        failed=failed,
    )


def _own_time(timings: Mapping[str, Any]) -> tuple[int, float] | None:
    """Tokens after the first and their seconds, as llama.cpp measured them itself."""
    tokens, milliseconds = count(timings.get("predicted_n")), timings.get("predicted_ms")
    return (max(tokens - 1, 0), milliseconds / 1e3) if tokens and isinstance(milliseconds, (int, float)) else None


def _pair(run: Sequence[Try]) -> measure.Pair:
    """As plain and speculative runs of one engine are, so that their speeds are counted in one place."""
    return measure.Pair(_result(run[0]), _result(run[-1]))


def _result(found: Try) -> Result:
    a = found.answer
    assert a is not None and a.tokens is not None and a.decode_s is not None
    stats = Stats(emitted=a.tokens - 1, forward_s=a.decode_s, first_tokens=1)
    reason: Any = a.finish_reason  # a server's word may be one that the engine does not have
    return Result(a.text, (), (), (), reason, Usage(0, a.tokens, 0), stats, ())


def _gauges(reading: Reading) -> str:
    shown = ", ".join(f"{name} {value:.2f}" for name, value in sorted(reading.gauges.items()))
    return (
        f"{reading.engine} shows gauges of its last steps ({shown}): they cannot be told apart by request, "
        "so no acceptance is shown for the prompts"
    )
