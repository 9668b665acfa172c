"""What an answer cost: `usage` as OpenAI counts it, and `speculative`, the truth about what was drafted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from typing import Any

from slipstream.core.stats import Stats
from slipstream.core.types import StepRecord
from slipstream.core.verify import LOSSY
from slipstream.generation import Chunk, Result
from slipstream.serve.prepare import Plan
from slipstream.text.detok import Segment

_PREDICTED = "predicted"  # the drafter that is told the client's prediction
_OFF = "drafting was off: "
_STEP = ("verified", "accepted", "emitted", "prefilled", "padded", "draft_s", "forward_s", "verify_s")
_COUNTS = (
    *("steps", "verify_steps", "verified", "accepted", "discarded", "padded", "first_tokens", "emitted"),
    *("emitted_verifying", "prefilled", "accepted_per_position", "verified_per_position", "by_drafter"),
)
_RATES = ("acceptance_rate", "mean_acceptance_length", "tokens_per_second")
_TIMES = ("draft_s", "forward_s", "verify_s", "prefill_s")


def usage(plan: Plan, results: Sequence[Result]) -> dict[str, Any]:
    """A prompt is counted once, however many choices it has; what they say is summed."""
    prompts = [r.usage for r in results[:: plan.n]]
    read, said = sum(u.prompt_tokens for u in prompts), sum(r.usage.completion_tokens for r in results)
    predicted = [r.stats.by_drafter.get(_PREDICTED, {"verified": 0, "accepted": 0}) for r in results]
    return {
        "prompt_tokens": read,
        "completion_tokens": said,
        "total_tokens": read + said,
        "prompt_tokens_details": {"cached_tokens": sum(u.cached_tokens for u in prompts)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(p["accepted"] for p in predicted),
            "rejected_prediction_tokens": sum(p["verified"] - p["accepted"] for p in predicted),
            "reasoning_tokens": 0,
        },
    }


def speculative(plan: Plan, results: Sequence[Result], failures: Sequence[str] = ()) -> dict[str, Any]:
    """Summed over all choices. `failures`: what their grammars say went wrong."""
    stats = reduce(Stats.plus, (r.stats for r in results))
    words = {name: word for r in results for name, word in r.drafters.items()}
    notes = [*plan.notes, *(note for r in results for note in r.notes)]
    notes += [f"the grammar gave up: {failure}" for failure in failures if failure]
    reason = "" if stats.verified else _why_not(plan, stats, words, notes)
    return {
        "mode": plan.mode,
        "active": not reason,
        "reason": reason,
        "verify": plan.verify,
        "lossy": plan.verify in LOSSY and plan.mode != "off",
        "seed": plan.seed,
        "drafters": words,
        "drafted": stats.proposed,
        **{name: getattr(stats, name) for name in (*_COUNTS, *_RATES, *_TIMES)},
        "time_saved_s": stats.saved_s,
        "notes": list(dict.fromkeys(notes)),
    }


def _why_not(plan: Plan, stats: Stats, words: Mapping[str, str], notes: Sequence[str]) -> str:
    """Why nothing was verified."""
    told = next((note.removeprefix(_OFF) for note in notes if note.startswith(_OFF)), None)
    if told is not None:
        return told
    limit = plan.requests[0].max_tokens
    if limit is not None and limit <= 1:
        return f"max_tokens is {limit}: there was nothing to draft"
    if not stats.steps:
        return "the answer ended with its first token: there was nothing to draft"
    paused = "; ".join(f"{name} {word}" for name, word in words.items() if word.startswith("paused"))
    if paused:
        return paused
    if not stats.proposed:
        return "no drafter proposed anything"
    return "nothing that was proposed was worth checking"


def segments(parts: Sequence[Segment]) -> list[dict[str, str]]:
    return [asdict(s) for s in parts]


def detail(chunk: Chunk | None) -> dict[str, Any]:
    """Who proposed each piece of this chunk, and what its step did."""
    step: StepRecord | None = None if chunk is None else chunk.record
    return {
        "segments": [] if chunk is None else segments(chunk.segments),
        "step": None if step is None else {name: getattr(step, name) for name in _STEP},
    }
