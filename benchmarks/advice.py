"""Is the advice right? Every way to draft is run for real; predictions are held against it, and so is the choice.

    python benchmarks/advice.py TARGET [--workload builtin] [--candidates auto] [--per-kind 4] [--max-tokens 128]
        [--runs 1] [--minutes 40] [--name NAME] [--resume]

Brute force runs all candidates and takes the best. An advice runs only those that it predicts to be best (two with
--quick, else three), and may say less about them; what it then chooses is judged by what brute force measured.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from results import save
from slipstream.advise.advice import Advice
from slipstream.advise.advisor import Advisor, Settings
from slipstream.advise.candidates import candidates
from slipstream.advise.conclude import Prices, conclude
from slipstream.advise.evidence import TARGET, Evidence, place
from slipstream.advise.progress import Progress
from slipstream.advise.workload import load
from slipstream.hub import resolve

REAL = (2, 3)  # ways that `advise --quick` and `advise` run for real


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--workload", default="builtin")
    parser.add_argument("--candidates", default="auto")
    parser.add_argument("--per-kind", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", default="")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    ways = candidates(args.target, args.candidates)
    settings = Settings(args.max_tokens, args.runs, len(ways), 60 * args.minutes, seed=args.seed)
    kept = place("benchmark", args.target, args.workload)
    evidence = Evidence.read(kept) if args.resume else Evidence(kept)
    progress = Progress(lambda line: print(f"  {line}", file=sys.stderr, flush=True))
    advisor = Advisor(args.target, load(args.workload).cut(args.per_kind), ways, settings, evidence, progress)
    advisor.check()
    advisor.write()
    advisor.hear()
    outcomes = advisor.predict()
    ranked = advisor.best(outcomes)
    advisor.run(ranked)
    prices = Prices(evidence.curves[TARGET], evidence.curves)
    everything = conclude(advisor, outcomes, prices, args.workload, " ".join(sys.argv))
    result: dict[str, Any] = {"minutes": progress.spent_s / 60, "advice": everything.model_dump(mode="json")}
    result["cells"] = cells(everything)
    result["brute_force"] = overall(everything)
    result["chosen"] = []
    for n in REAL:
        advisor.settings = Settings(args.max_tokens, args.runs, n, seed=args.seed)
        advisor.tried = [way.draft for way in advisor.best(outcomes)]
        chosen = conclude(advisor, outcomes, prices, args.workload, "").chosen
        best = max(result["brute_force"].values())
        share = (result["brute_force"].get(chosen, 1.0)) / best
        result["chosen"].append({"real": n, "ran": advisor.tried, "chosen": chosen, "of_the_best": share})
    show(result)
    files = {"target": resolve(args.target)} | {f"draft {w.model}": resolve(w.model) for w in ways if w.model}
    save(f"advice{'-' * bool(args.name)}{args.name}", result, files)


def cells(advice: Advice) -> list[dict[str, Any]]:
    """Predicted and measured speed-ups side by side."""
    found = []
    for cell in advice.cells:
        if cell.measured is not None:
            paper, real = cell.predicted.speedup, cell.measured.speedup
            own = {"draft": cell.draft, "kind": cell.kind, "prompts": cell.prompts, "texts": cell.texts}
            found.append({**own, "predicted": paper, "measured": real, "error": paper / real - 1})
    return found


def overall(advice: Advice) -> dict[str, float]:
    """Measured speed-up of each way over all prompts, each kind weighing as in the workload."""
    mix, found = advice.workload.mix, {}
    for way in dict.fromkeys(c.draft for c in advice.cells if c.measured):
        own = [c for c in advice.cells if c.draft == way and c.measured]
        # Plain decoding takes about the same time for a prompt of any kind; what matters here is the order of ways.
        total = sum(mix[c.kind] for c in own)
        found[way] = total / sum(mix[c.kind] / c.measured.speedup for c in own if c.measured)
    return found


def show(result: dict[str, Any]) -> None:
    errors = sorted(abs(c["error"]) for c in result["cells"])
    for c in result["cells"]:
        print(f"{c['draft']:36} {c['kind']:18} {c['predicted']:5.2f} {c['measured']:5.2f} {100 * c['error']:+5.0f} %")
    print(f"median error {100 * errors[len(errors) // 2]:.1f} % over {len(errors)} cells")
    for draft, speedup in result["brute_force"].items():
        print(f"{draft:36} {speedup:.3f}")
    for chosen in result["chosen"]:
        print(f"of {chosen['real']} that are run, {chosen['chosen']}: {100 * chosen['of_the_best']:.1f} % of the best")


if __name__ == "__main__":
    main()
