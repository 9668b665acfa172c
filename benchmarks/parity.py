"""Greedy parity: 20 prompts x k in {0,1,2,4,8,16} x {suffix, draft model, always wrong, the target itself}.

    python benchmarks/parity.py TARGET [--draft MODEL] [--prompts 20] [--tokens 64]

The bound for a near-tie was written down before the first run: slipstream.advise.compare.TIE_BOUND. Every difference
is looked up in plain decoding: a gap below the bound is a near-tie, anything else a failure. The target drafting for
itself must be accepted wholly, apart from near-ties.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results import prompts, save
from slipstream import Draft, Engine, Fixed, SamplingParams
from slipstream.advise.compare import TIE_BOUND, compare
from slipstream.core.ports import Drafter, Want
from slipstream.core.types import Array, Verdict
from slipstream.drafters.model import ModelDrafter
from slipstream.drafters.suffix import SuffixDrafter
from slipstream.hub import resolve
from slipstream.models.llamacpp.model import LlamaModel, LlamaOptions

KS = (0, 1, 2, 4, 8, 16)


class AlwaysWrong:
    """Proposes a token that the target practically never says."""

    name = "wrong"

    def __init__(self, token: int) -> None:
        self.token = token

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams, cached: int = 0) -> None: ...

    def propose(self, slot: int, tokens: Sequence[int], want: Want) -> Draft:
        return Draft.chain([self.token] * min(want.nodes, want.depth), self.name)

    def observe(self, slot: int, draft: Draft, verdict: Verdict, logits: Array | None) -> None: ...

    def end(self, slot: int) -> None: ...


class Watched(ModelDrafter):
    """Notes how far behind the target's own choice each rejected guess was, in logits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.behind: list[float] = []

    def observe(self, slot: int, draft: Draft, verdict: Verdict, logits: Array | None) -> None:
        at = len(verdict.path)
        if logits is not None and at < len(draft) and draft.tokens[at] != verdict.token:
            row = logits[0 if not at else verdict.path[-1] + 1]
            self.behind.append(float(row.max() - row[draft.tokens[at]]))


def drafters(engine: Engine, target: str, draft: str | None) -> dict[str, Drafter]:
    """The four drafters; models are opened beside the target."""
    n_ctx = engine.model.caps.n_ctx
    out: dict[str, Drafter] = {
        "suffix": SuffixDrafter(1),
        "wrong": AlwaysWrong(engine.model.caps.n_vocab - 7),
        "self": Watched(LlamaModel(resolve(target), LlamaOptions(n_ctx=n_ctx))),
    }
    if draft:
        out["model"] = ModelDrafter(
            LlamaModel(resolve(draft), LlamaOptions(n_ctx=n_ctx)), n_target=engine.model.caps.n_vocab
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--draft")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--only", nargs="*", help="these drafters")
    args = parser.parse_args()
    works = prompts(Path(__file__).parent / "prompts-parity.jsonl", args.prompts)
    cells: list[dict[str, Any]] = []
    with Engine.open(args.target, None, n_ctx=1024) as first:
        asked = [first.encode_chat([{"role": "user", "content": w["prompt"]}]) for w in works]
        plain = [first.generate(ids, max_tokens=args.tokens).ids for ids in asked]
        for name, drafter in drafters(first, args.target, args.draft).items():
            if args.only and name not in args.only:
                continue
            engine = Engine(first.model, first.tokenizer, drafter, Fixed(4))
            for k in KS:
                engine.policy = Fixed(k)
                found: Counter[str] = Counter()
                gaps, verified, accepted = [], 0, 0
                for ids, right in zip(asked, plain, strict=True):
                    r = engine.generate(ids, max_tokens=args.tokens)
                    verified, accepted = verified + r.stats.verified, accepted + r.stats.accepted
                    answer = compare(engine, list(ids), SamplingParams(), right, r.ids)
                    found["identical" if answer.identical else answer.verdict] += 1
                    if answer.gap is not None:
                        gaps.append(answer.gap)
                rate = accepted / verified if verified else None
                cells.append({"drafter": name, "k": k, **found, "acceptance_rate": rate, "gaps": gaps})
                if isinstance(drafter, Watched):
                    cells[-1]["rejected_behind"], drafter.behind = drafter.behind, []
                print(cells[-1], file=sys.stderr, flush=True)
    result = {"target": args.target, "draft": args.draft, "tokens": args.tokens, "tie_bound": TIE_BOUND, "cells": cells}
    part = f"-{'-'.join(args.only)}" if args.only else ""
    save(f"parity-{resolve(args.target).stem[:12].lower()}{part}", result, {"target": resolve(args.target)})


if __name__ == "__main__":
    main()
