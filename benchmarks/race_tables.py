"""What a race showed: ratios of paired runs, and the tables that issue 3 asks for.

    python benchmarks/race_tables.py results/race-A.json [results/race-B.json ...]

Prints the tables of several races taken together, as when kinds were raced on different days. A speed-up compares a run
with the same program's plain decoding of the same prompt in the same round; "over" compares tokens per second outright.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from contestants import PLAIN
from llama_server import PROGRAM

Row = Mapping[str, Any]  # one run: see race.Race.row
RESAMPLES = 2000
ALL = "all"
WITH_DRAFT, WITHOUT = "priced+draft", "priced"
FLOOR = 0.99
# What issue 3 asks of each kind: with a draft model, and without one.
ASKED: dict[str, dict[str, float]] = {
    WITH_DRAFT: {
        "structured": 1.9, "code editing": 2.0, "new code": 1.5, "summary": 1.3, "question answering": 1.3,
        "maths": 1.2, "translation": 1.05,
    },
    WITHOUT: {"code editing": 1.8, "structured": 1.2, "summary": 1.2},
}  # fmt: skip


def plain_of(program: str) -> str:
    return f"{PROGRAM}:{PLAIN}" if program == PROGRAM else PLAIN


def tps(row: Row) -> float | None:
    return row["tokens"] / row["decode_s"] if row["tokens"] and row["decode_s"] else None


def late_tps(row: Row) -> float | None:
    return row["late_tokens"] / row["late_s"] if row["late_tokens"] and row["late_s"] else None


def wall(row: Row) -> float | None:
    """Whole requests by the token, as two near-tied texts may differ in length."""
    return (row["tokens"] + 1) / row["wall_s"] if row["wall_s"] else None


def first(row: Row) -> float | None:
    return row["first_s"] or None


def paired(
    rows: Sequence[Row], a: str, b: str, kind: str = ALL, value: Callable[[Row], float | None] = tps
) -> list[float]:
    """`value` of `a` over that of `b`, for each prompt and round in which both ran."""
    found: dict[str, dict[tuple[Any, Any], float]] = {a: {}, b: {}}
    for row in rows:
        if row["contestant"] in found and kind in (ALL, row["kind"]) and "error" not in row:
            x = value(row)
            if x:
                found[row["contestant"]][row["prompt"], row["round"]] = x
    return [x / found[b][key] for key, x in found[a].items() if key in found[b]]


def summary(ratios: Sequence[float], seed: int = 0) -> dict[str, Any] | None:
    """Median, spread and a 95 % bootstrap interval of the median (none for fewer than three runs)."""
    if not ratios:
        return None
    interval = None
    if len(ratios) >= 3:
        rng = random.Random(seed)
        medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
        interval = [medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES)]]
    return {
        "median": statistics.median(ratios),
        "low": min(ratios),
        "high": max(ratios),
        "interval": interval,
        "runs": len(ratios),
    }


def contestants(rows: Sequence[Row], program: str | None = None) -> list[str]:
    return list(dict.fromkeys(r["contestant"] for r in rows if program in (None, r["program"])))


def kinds(rows: Sequence[Row]) -> list[str]:
    return [*dict.fromkeys(r["kind"] for r in rows), ALL]


def figures(rows: Sequence[Row]) -> dict[str, Any]:
    """Per kind and contestant: speed-up, tokens per second, first token, whole request, late tokens, sameness."""
    return {kind: {name: _figure(rows, kind, name) for name in contestants(rows)} for kind in kinds(rows)}


def _figure(rows: Sequence[Row], kind: str, name: str) -> dict[str, Any]:
    own = [r for r in rows if r["contestant"] == name and kind in (ALL, r["kind"])]
    ran = [r for r in own if "error" not in r]
    speeds = [s for r in ran if (s := tps(r))]
    program = own[0]["program"] if own else ""
    base = plain_of(program)
    drafted = sum(r["drafted"] for r in ran)
    return {
        "tps": statistics.median(speeds) if speeds else None,
        "speedup": summary(paired(rows, name, base, kind)),
        "speedup_wall": summary(paired(rows, name, base, kind, wall)),
        "speedup_late": summary(paired(rows, name, base, kind, late_tps)),
        "first_token": summary(paired(rows, name, base, kind, first)),
        "of_oracle": summary(paired(rows, name, "oracle", kind)),
        "acceptance_rate": sum(r["accepted"] for r in ran) / drafted if drafted else None,
        "identical": sum(r["verdict"] == "identical" for r in ran),
        "near_ties": sum(r["verdict"] == "near tie" for r in ran),
        "mismatches": sum(r["verdict"] == "mismatch" for r in ran),
        "errors": len(own) - len(ran),
    }


def duel(rows: Sequence[Row], mine: str, table: int) -> dict[str, Any]:
    """Slipstream's `mine` over the best server mode of each kind, chosen after the fact, in tokens per second.

    Table 1 has the modes as they come; table 2 has also those with a draft file and length found by hand.
    """
    modes = list(dict.fromkeys(r["contestant"] for r in rows if r["program"] == PROGRAM and r["table"] <= table))
    found: dict[str, Any] = {}
    every: list[float] = []
    for kind in kinds(rows)[:-1]:
        ratios = {mode: paired(rows, mine, mode, kind) for mode in modes}
        ran = {mode: r for mode, r in ratios.items() if r}
        if ran:
            best = min(ran, key=lambda mode: statistics.median(ran[mode]))
            found[kind] = {"best": best, **(summary(ran[best]) or {})}
            every += ran[best]
    if every:
        found[ALL] = {"best": "each kind's best", **(summary(every) or {})}
    return found


def duels(rows: Sequence[Row]) -> dict[str, Any]:
    """All that issue 3 asks for beside llama-server."""
    names = contestants(rows)
    mine = WITH_DRAFT if WITH_DRAFT in names else WITHOUT
    if mine not in names or not contestants(rows, PROGRAM):
        return {}
    return {
        "slipstream": mine,
        "best_mode": duel(rows, mine, 1),
        "best_mode_tuned": duel(rows, mine, 2),
        "default_draft": {k: summary(paired(rows, mine, f"{PROGRAM}:draft-simple", k)) for k in kinds(rows)},
        "plain": {k: summary(paired(rows, PLAIN, f"{PROGRAM}:{PLAIN}", k)) for k in kinds(rows)},
    }


# -- Markdown ------------------------------------------------------------------------------------------------------


def cell(s: Mapping[str, Any] | None) -> str:
    """Median (lowest to highest)."""
    return "-" if s is None else f"{s['median']:.2f} ({s['low']:.2f} to {s['high']:.2f})"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))


def markdown(rows: Sequence[Row]) -> str:
    """All tables of a race."""
    found, fights = figures(rows), duels(rows)
    parts = [f"Medians of paired runs, spread in brackets. {len(rows)} runs.", slipstream_table(rows, found)]
    servers = contestants(rows, PROGRAM)
    if servers:
        head = ["llama-server", *(k for k in found)]
        lines = [[name, *(cell(found[k][name]["speedup"]) for k in found)] for name in servers]
        parts += ["## llama-server: speed-up over its own plain decoding", table(head, lines)]
    if fights:
        parts += ["## Slipstream over llama-server, tokens per second", duel_table(fights)]
    parts += ["## Text, first token, whole request", sameness_table(rows, found[ALL])]
    return "\n\n".join(parts) + "\n"


def slipstream_table(rows: Sequence[Row], found: Mapping[str, Any]) -> str:
    names = [n for n in contestants(rows, "slipstream") if n != PLAIN]
    head = ["kind", "plain tok/s"]
    for name in names:
        head += [name, "asked"] if name in ASKED else [name]
        head += ["of the ceiling"] if name in ASKED and "oracle" in names else []
    lines = []
    for kind, by_name in found.items():
        plain = by_name.get(PLAIN, {}).get("tps")
        line = [kind, f"{plain:.1f}" if plain else "-"]
        for name in names:
            figure = by_name[name]
            line.append(cell(figure["speedup_late" if name == "wrong" else "speedup"]))
            if name in ASKED:
                line.append("" if kind == ALL else f"{ASKED[name].get(kind, FLOOR):.2f}")
                share = figure["of_oracle"]
                line += [f"{share['median']:.2f}" if share else "-"] if "oracle" in names else []
        lines.append(line)
    note = "\n\n`wrong` is counted from token 64 on, as asked (0.98)." if "wrong" in names else ""
    return "## Slipstream: speed-up over plain\n\n" + table(head, lines) + note


def duel_table(fights: Mapping[str, Any]) -> str:
    head = ["kind", "plain over plain", "best mode", "over it", "best mode, tuned by hand", "over it", "default draft"]
    lines = []
    for kind, plain in fights["plain"].items():
        one, two = fights["best_mode"].get(kind), fights["best_mode_tuned"].get(kind)
        best = [(d["best"].removeprefix(f"{PROGRAM}:"), cell(d)) if d else ("-", "-") for d in (one, two)]
        lines.append([kind, cell(plain), *best[0], *best[1], cell(fights["default_draft"][kind])])
    return (
        table(head, lines)
        + f"\n\nSlipstream is `{fights['slipstream']}`. Asked: 1.05 in each kind and 1.3 overall"
        + ("; tuned by hand 1.0 and 1.15; over the default draft mode 2.0 overall.")
    )


def sameness_table(rows: Sequence[Row], found: Mapping[str, Any]) -> str:
    head = ["contestant", "identical", "near ties", "mismatches", "failed", "accepted", "first token", "whole request"]
    lines = []
    for name in contestants(rows):
        f = found[name]
        rate = f["acceptance_rate"]
        counts = [str(f[key]) for key in ("identical", "near_ties", "mismatches", "errors")]
        accepted = "-" if rate is None else f"{rate:.0%}"
        lines.append([name, *counts, accepted, cell(f["first_token"]), cell(f["speedup_wall"])])
    return (
        table(head, lines) + "\n\nText is compared with Slipstream's plain decoding; first token: seconds over plain's."
    )


def main() -> None:
    rows: list[Row] = []
    for path in sys.argv[1:]:  # the same prompt and round of two races are two runs
        rows += [{**r, "round": f"{path}:{r['round']}"} for r in json.loads(Path(path).read_text())["runs"]]
    if not rows:
        sys.exit("usage: python benchmarks/race_tables.py RESULT.json ...")
    print(markdown(rows))


if __name__ == "__main__":
    main()
