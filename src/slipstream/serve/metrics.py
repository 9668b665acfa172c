"""What a server counts, for Prometheus. One meaning each: the one of core/stats.py, summed over all choices.

A request has as many choices as its `n` says; each is one sequence, and each is counted. A choice that was cancelled
counts the tokens and steps that it had.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from slipstream.core.stats import Stats
from slipstream.generation import Chunk, Generation
from slipstream.worker import State

PREFIX = "slipstream_"
# From a small model on a GPU to a long prompt on an old CPU.
_SHORT = (0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)
_LONG = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 1200.0)
_TOKENS = (0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)


@dataclass
class _Sums:
    """What has been counted since the server started. `stats`: of all choices; its seconds are not used."""

    stats: Stats = field(default_factory=Stats)
    forwards: int = 0
    step_s: float = 0.0
    draft_s: float = 0.0
    forward_s: float = 0.0
    verify_s: float = 0.0
    prompt: int = 0
    cached: int = 0
    hits: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)


# Name without prefix and `_total`, what it means, and where it is.
_COUNTERS: tuple[tuple[str, str, Callable[[_Sums], float]], ...] = (
    (
        "spec_decode_num_drafts",
        "Steps that verified a draft, each choice's counted.",
        lambda s: s.stats.verify_steps,
    ),
    ("spec_decode_num_draft_tokens", "Drafted tokens that the target verified.", lambda s: s.stats.verified),
    ("spec_decode_num_accepted_tokens", "Verified drafted tokens that were accepted.", lambda s: s.stats.accepted),
    (
        "spec_decode_num_emitted_tokens",
        "Tokens of the steps that verified a draft, the target's own included.",
        lambda s: s.stats.emitted_verifying,
    ),
    (
        "spec_decode_num_discarded_tokens",
        "Drafted tokens that were proposed and never verified; in no rate.",
        lambda s: s.stats.discarded,
    ),
    (
        "padded_tokens",
        "Tokens that only filled forwards up to a cheaper size; in no other count.",
        lambda s: s.stats.padded,
    ),
    (
        "steps",
        "Forwards that chose tokens, prompt reading left out; one that serves several choices counts once for each.",
        lambda s: s.stats.steps,
    ),
    ("step_tokens", "Tokens of these steps: generated, without first tokens of a prompt.", lambda s: s.stats.emitted),
    ("forwards", "Forwards of the target for all choices that ran, prompt reading included.", lambda s: s.forwards),
    (
        "busy_seconds",
        "Time of these forwards as a whole: drafting, forward, verification, text.",
        lambda s: s.step_s,
    ),
    ("draft_seconds", "Of the busy seconds, those spent on proposing drafts and planning.", lambda s: s.draft_s),
    ("forward_seconds", "Of the busy seconds, those in the target's forwards and undoing.", lambda s: s.forward_s),
    ("verify_seconds", "Of the busy seconds, those spent on verification and sampling.", lambda s: s.verify_s),
    ("prompt_tokens", "Tokens of the prompts, read or reused; each choice's counted.", lambda s: s.prompt),
    ("cached_prompt_tokens", "Prompt tokens that were reused from a cache instead of read.", lambda s: s.cached),
    (
        "generated_tokens",
        "Tokens delivered, those of cancelled choices included.",
        lambda s: s.stats.emitted + s.stats.first_tokens,
    ),
    ("cache_hits", "Choices that reused at least one token of an earlier prompt or answer.", lambda s: s.hits),
)

# As above, and the label whose values the mapping has.
_LABELLED: tuple[tuple[str, str, str, Callable[[_Sums], Mapping[str, float]]], ...] = (
    (
        "spec_decode_num_accepted_tokens_per_pos",
        "Accepted drafted tokens by their position in the draft; 0 is the first drafted token.",
        "position",
        lambda s: _by_position(s.stats.accepted_per_position, s.stats.verified_per_position),
    ),
    (
        "spec_decode_num_drafts_per_pos",
        "Drafts that were verified at least up to this position; 0 is the first drafted token.",
        "position",
        lambda s: _by_position(s.stats.verified_per_position),
    ),
    (
        "spec_decode_drafter_verified_tokens",
        "Drafted tokens that the target verified, by who proposed them.",
        "drafter",
        lambda s: {name: n["verified"] for name, n in s.stats.by_drafter.items()},
    ),
    (
        "spec_decode_drafter_accepted_tokens",
        "Verified drafted tokens that were accepted, by who proposed them.",
        "drafter",
        lambda s: {name: n["accepted"] for name, n in s.stats.by_drafter.items()},
    ),
    (
        "requests_finished",
        "Choices that are over, by reason: stop, length, or cancelled (the client left, a limit, an error).",
        "finish_reason",
        lambda s: {"stop": 0, "length": 0, "cancelled": 0} | s.finished,
    ),
    (
        "requests_failed",
        "Errors that ended a request, or a step and with it every request that ran, by kind.",
        "kind",
        lambda s: dict(s.failed),
    ),
)

_GAUGES: tuple[tuple[str, str, Callable[[State], float]], ...] = (
    ("queue_length", "Choices that wait for a slot now.", lambda s: s.waiting),
    ("active_slots", "Slots with a choice that runs now.", lambda s: s.active),
    ("slots", "Slots that there are: choices that can run at once.", lambda s: s.slots),
)


@dataclass
class _Clock:
    """Times of one choice: when its request came, and when it was last given tokens (None: never)."""

    arrived: float
    heard: float | None = None


class Metrics:
    """A worker.Watch. `render` is for any thread, and so is `failed`; the rest is the owning thread's. `clock` gives
    seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._sums = _Sums()
        self._running: dict[Generation, _Clock] = {}
        self._registry = CollectorRegistry()
        self._first = self._histogram(
            "time_to_first_token_seconds", "From a request's arrival to each choice's first token.", _LONG
        )
        self._gap = self._histogram(
            "inter_token_seconds",
            "Time between two deliveries divided by the tokens of the later one, once for each of these tokens.",
            _SHORT,
        )
        self._wait = self._histogram("queue_wait_seconds", "From a request's arrival to each choice's slot.", _LONG)
        self._whole = self._histogram("request_seconds", "From a request's arrival to each choice's end.", _LONG)
        self._per_step = self._histogram(
            "tokens_per_step", "Tokens that a step gave one choice; its mean is the mean acceptance length.", _TOKENS
        )

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(PREFIX + name, text, buckets=buckets, registry=self._registry)

    # -- worker.Watch ----------------------------------------------------------------------------------------------

    def started(self, generation: Generation, waited_s: float) -> None:
        self._running[generation] = _Clock(self._clock() - waited_s)
        with self._lock:
            self._wait.observe(waited_s)
            self._sums.prompt += generation.sequence.n_prompt
            self._sums.cached += generation.cached
            self._sums.hits += generation.cached > 0

    def stepped(self, chunks: Mapping[Generation, Chunk], seconds: float) -> None:
        now, record = self._clock(), None
        with self._lock:
            sums = self._sums
            for generation, chunk in chunks.items():
                if chunk.record is not None:
                    record = chunk.record
                    sums.stats.add(record)
                    if not record.prefilled:
                        self._per_step.observe(record.emitted)
                if chunk.tokens:
                    self._hear(self._running[generation], now, len(chunk.tokens))
            sums.forwards += 1
            sums.step_s += seconds
            if record is not None:  # every record of a step has the times of the whole step
                sums.draft_s += record.draft_s
                sums.forward_s += record.forward_s
                sums.verify_s += record.verify_s

    def _hear(self, clock: _Clock, now: float, n: int) -> None:
        if clock.heard is None:
            self._first.observe(now - clock.arrived)
        else:
            each = (now - clock.heard) / n
            for _ in range(n):
                self._gap.observe(each)
        clock.heard = now

    def finished(self, generation: Generation, seconds: float) -> None:
        self._running.pop(generation, None)
        with self._lock:
            self._whole.observe(seconds)
            self._sums.finished[generation.sequence.finish or "cancelled"] += 1

    def failed(self, error: BaseException) -> None:
        with self._lock:
            self._sums.failed[type(error).__name__] += 1

    # -- any thread ------------------------------------------------------------------------------------------------

    def render(self, state: State) -> tuple[bytes, str]:
        """The text that Prometheus reads, and its content type."""
        with self._lock:
            sums, histograms = deepcopy(self._sums), list(self._registry.collect())
        return generate_latest(_Page(sums, state, histograms)), CONTENT_TYPE_PLAIN_0_0_4


class _Page(Collector):
    """All families, as they are at one moment."""

    def __init__(self, sums: _Sums, state: State, histograms: Sequence[Metric]) -> None:
        self._sums, self._state, self._histograms = sums, state, histograms

    def collect(self) -> Iterator[Metric]:
        for name, text, count in _COUNTERS:
            yield CounterMetricFamily(PREFIX + name, text, value=count(self._sums))
        for name, text, label, counts in _LABELLED:
            family = CounterMetricFamily(PREFIX + name, text, labels=[label])
            for value, n in counts(self._sums).items():
                family.add_metric([value], n)
            yield family
        for name, text, gauge in _GAUGES:
            yield GaugeMetricFamily(PREFIX + name, text, value=gauge(self._state))
        for histogram in self._histograms:
            histogram.samples = [s for s in histogram.samples if not s.name.endswith("_created")]
            yield histogram


def _by_position(counts: list[int], as_deep_as: list[int] | None = None) -> dict[str, float]:
    """With zeros for positions that were verified and never accepted."""
    deep = max(len(counts), len(as_deep_as or ()))
    return {str(i): counts[i] if i < len(counts) else 0 for i in range(deep)}
