"""An advice as an advisor could have made it, for tests of what is made from one. Its figures are made up."""

from __future__ import annotations

from slipstream.advise.advice import (
    Accuracy,
    Advice,
    Candidate,
    Cell,
    Decision,
    Memory,
    ModelFacts,
    Prices,
    Sample,
    Segment,
    Settings,
    Speed,
    Verdict,
    Workload,
)  # fmt: skip

MB = 10**6
KINDS: dict[str, tuple[int, float, float, float, Decision]] = {  # prompts, suffix, with the draft model, acceptance
    "new code": (6, 1.12, 1.71, 0.72, "on"),
    "code editing": (10, 2.41, 2.96, 0.88, "on"),
    "structured": (4, 1.35, 1.92, 0.79, "on"),
    "translation": (3, 0.99, 1.12, 0.55, "on"),
    "chat": (12, 1.01, 1.02, 0.41, "not worth it"),
    "creative": (4, 0.98, 0.88, 0.31, "off"),
    "summary": (1, 1.10, 1.20, 0.60, "too few prompts"),
}
DRAFT = "suffix,qwen2.5-coder-0.5b"


def speed(speedup: float, acceptance: float, measured: bool) -> Speed:
    return Speed(
        speedup=speedup,
        interval=(round(speedup * 0.93, 3), round(speedup * 1.06, 3)),
        plain_tps=24.1,
        tps=round(24.1 * speedup, 2),
        acceptance_rate=acceptance,
        break_even=0.36,
        mean_acceptance_length=1 + 3 * acceptance,
        by_position=[round(acceptance**i, 3) for i in range(1, 7)],
        plain_first_token_s=0.61 if measured else None,
        first_token_s=0.63 if measured else None,
    )


def model(name: str, file: str, size: int, measured: int) -> ModelFacts:
    memory = Memory(
        weights=size, cache=117 * MB, compute=95 * MB, overhead=60 * MB, total=size + 272 * MB, measured=measured
    )
    return ModelFacts(name=name, file=file, size=size, sha256="0" * 64, quantisation="Q4_K_M", memory=memory)


def advice(**changes: object) -> Advice:
    """A mixed workload on the Qwen pair: on for code, off for stories, one kind with too few prompts."""
    cells = [
        Cell(
            draft=d, kind=k, prompts=n, predicted=speed(s * 1.03, a, False), measured=speed(s, a, True),
            texts="identical",
        )
        for k, (n, plain, model_, a, _) in KINDS.items()
        for d, s in (("suffix", plain), (DRAFT, model_))
    ]  # fmt: skip
    verdicts = [
        Verdict(
            kind=kind, decision=decision, draft=DRAFT, speed=speed(s, a, True), measured=True, prompts=n,
            reason=f"your {kind} prompts accept {100 * a:.0f} % of guesses; here it takes 36 % to break even",
        )
        for kind, (n, _, s, a, decision) in KINDS.items()
    ]  # fmt: skip
    values: dict[str, object] = {
        "target": model("qwen2.5-coder-1.5b", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 1117 * MB, 1391 * MB),
        "drafts": {
            "qwen2.5-coder-0.5b": model(
                "qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", 491 * MB, 702 * MB
            )
        },
        "machine": "A processor with 2 cores",
        "workload": Workload(
            source="requests.jsonl",
            mix={kind: n for kind, (n, *_) in KINDS.items()},
            used={kind: min(n, 4) for kind, (n, *_) in KINDS.items()},
            rules={"chat": {"no other rule fits": 12}, "new code": {"asks for code": 6}},
            left_out=[("line 7", "not JSON: Expecting value at column 1")],
        ),
        "settings": Settings(max_tokens=128, runs=2, seed=0),
        "candidates": [
            Candidate(draft="suffix"),
            Candidate(draft=DRAFT, model="qwen2.5-coder-0.5b"),
            Candidate(draft="gemma3-270m", model="gemma3-270m", skipped="the two models share no vocabulary"),
        ],
        "target_prices": Prices(
            sizes=[1, 2, 3, 4, 6, 8, 12, 16], seconds=[0.041, 0.041, 0.042, 0.042, 0.051, 0.058, 0.083, 0.104],
            context=16, per_past=2e-6, per_past_token=1e-6,
        ),
        "draft_prices": {
            "qwen2.5-coder-0.5b": Prices(
                sizes=[1, 2, 4, 8], seconds=[0.0102, 0.0105, 0.011, 0.018], context=16,
                per_past=1e-6, per_past_token=5e-7,
            )
        },
        "cells": cells,
        "verdicts": verdicts,
        "overall": Verdict(
            kind="all", decision="on", draft=DRAFT, speed=speed(1.34, 0.63, True), measured=True, prompts=40,
            reason="over all your work it runs 1.34 times as fast",
        ),
        "chosen": DRAFT,
        "accuracy": Accuracy(cells=14, median_error=0.03, worst_error=0.11),
        "sample": Sample(
            kind="code editing",
            draft=DRAFT,
            segments=[
                Segment(text="def total(", origin="suffix"),
                Segment(text="numbers", origin="target"),
                Segment(text="):\n    return sum(", origin="model"),
                Segment(text="numbers)\n", origin="suffix"),
            ],
        ),
        "reproduce": "slipstream advise -m qwen2.5-coder-1.5b --workload requests.jsonl --seed 0",
        "provenance": {
            "date": "2026-11-30T12:00:00+00:00",
            "versions": {"slipstream": "0.1.0", "llama-cpp-python": "0.3.36"},
            "machine": {"cpu": "A processor", "cores": 2, "memory": 24 * 10**9, "flags": ["avx2", "fma"]},
            "models": {},
        },
    }  # fmt: skip
    return Advice.model_validate(values | changes)
