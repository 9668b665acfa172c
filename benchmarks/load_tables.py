"""Figures of a load, and its tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from llama_server import PROGRAM
from load_client import Asked, Heard
from load_servers import PLAIN, PRICED
from results import spread

RATIOS = ((PRICED, PLAIN), (PRICED, PROGRAM), (PLAIN, PROGRAM))
Row = Mapping[str, Any]


def figures(heard: Heard, seconds: float) -> dict[str, Any]:
    """Of one server in one round; `tps` counts what was delivered within `seconds`."""
    good = [a for a in heard.requests if not a.error]
    return {
        "tps": sum(a.completion_tokens * within(a, seconds) for a in good) / seconds,
        "asked": len(heard.requests),
        "done": sum(a.end <= seconds for a in good),
        "tokens": sum(a.completion_tokens for a in good),
        "prompt_tokens": sum(a.prompt_tokens for a in good),
        "wall_s": heard.wall_s,
        "ttft": [round(a.pieces[0][0] - a.start, 5) for a in good if a.pieces],
        "per_token": [round(each, 5) for a in good if (each := per_token(a)) is not None],
        "gaps": [round(gap, 5) for a in good for gap in gaps(a)],
        "client_cpu": heard.cpu_s / heard.wall_s,
    }


def within(asked: Asked, seconds: float) -> float:
    """The share of an answer that was delivered in time, by its characters."""
    characters = sum(n for _, n in asked.pieces)
    if not characters:
        return float(asked.end <= seconds)
    return sum(n for t, n in asked.pieces if t <= seconds) / characters


def per_token(asked: Asked) -> float | None:
    """Seconds; None for an answer that came at once."""
    if len(asked.pieces) < 2 or asked.completion_tokens < 2:
        return None
    return (asked.pieces[-1][0] - asked.pieces[0][0]) / (asked.completion_tokens - 1)


def gaps(asked: Asked) -> list[float]:
    return [b - a for (a, _), (b, _) in pairwise(asked.pieces)]


def quantile(values: Sequence[float], q: float) -> float | None:
    """The nearest one that is there."""
    return sorted(values)[min(int(q * len(values)), len(values) - 1)] if values else None


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """A row for each number of clients and server, its rounds together; and the ratios of the same round's speeds."""
    found = []
    for clients in dict.fromkeys(row["clients"] for row in rows):
        here = [row for row in rows if row["clients"] == clients]
        speeds = {(row["contestant"], row["round"]): row["tps"] for row in here}
        for name in dict.fromkeys(row["contestant"] for row in here):
            mine = [row for row in here if row["contestant"] == name]
            found.append({"clients": clients, "contestant": name, **together(mine), **ratios(name, speeds)})
    return found


def together(rows: Sequence[Row]) -> dict[str, Any]:
    drafted = [row["drafted"] for row in rows if row["drafted"] is not None]
    accepted = sum(row["accepted"] or 0 for row in rows)
    out: dict[str, Any] = {
        "tps": spread([row["tps"] for row in rows]),
        "asked": sum(row["asked"] for row in rows),
        "errors": sum(len(row["errors"]) for row in rows),
        "acceptance_rate": accepted / sum(drafted) if sum(drafted) else None,
    }
    for key in ("ttft", "per_token", "gaps"):
        values = [v for row in rows for v in row[key]]
        out[key] = {"p50": quantile(values, 0.5), "p95": quantile(values, 0.95)}
    return out | {key: max(row[key] for row in rows) for key in ("server_cpu", "idle_cpu", "client_cpu", "memory")}


def ratios(name: str, speeds: Mapping[tuple[str, int], float]) -> dict[str, Any]:
    rounds = sorted({number for _, number in speeds})
    found = {}
    for one, other in RATIOS:
        if one == name:
            pairs = [(speeds.get((one, r)), speeds.get((other, r))) for r in rounds]
            values = [a / b for a, b in pairs if a is not None and b]
            if values:
                found[f"over_{other}"] = spread(values)
    return found


def markdown(rows: Sequence[Row]) -> str:
    head = (
        "clients", "server", "tok/s", "over plain", f"over {PROGRAM}", "TTFT p50 / p95 ms", "per token p50 / p95 ms",
        "gap p50 / p95 ms", "accepted", "requests", "errors", "its CPU", "idle CPU", "client CPU",
    )  # fmt: skip
    return table(head, [_line(found) for found in summary(rows)])


def _line(s: Row) -> list[str]:
    return [
        str(s["clients"]), s["contestant"], ranged(s["tps"], 1), ranged(s.get(f"over_{PLAIN}")),
        ranged(s.get(f"over_{PROGRAM}")), _ms(s["ttft"]), _ms(s["per_token"]), _ms(s["gaps"]),
        percent(s["acceptance_rate"]), str(s["asked"]), str(s["errors"]),
        *(percent(s[key]) for key in ("server_cpu", "idle_cpu", "client_cpu")),
    ]  # fmt: skip


def table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    head = list(head)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines))


def ranged(values: Mapping[str, float] | None, digits: int = 2) -> str:
    """Median (lowest to highest)."""
    if values is None:
        return ""
    return f"{values['median']:.{digits}f} ({values['low']:.{digits}f} to {values['high']:.{digits}f})"


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _ms(values: Mapping[str, float | None]) -> str:
    return " / ".join("" if v is None else f"{1e3 * v:.0f}" for v in (values["p50"], values["p95"]))
