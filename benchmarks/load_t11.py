"""Case T11 over HTTP: prose at temperature 1, where drafting hardly pays, priced beside plain, in pairs.

Both servers get the same prompts and seeds, and the default verifier keeps the text: the same tokens on both sides. A
pair's runs come one after the other, in alternating order. `late` leaves out the first 64 tokens of each answer.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from typing import Any

from load_client import Asked, Heard, Load, drive
from load_prompts import bases, unique
from load_servers import PLAIN, PRICED, Running, Setting, servers
from load_tables import ranged, table
from race import WORDS
from results import spread

LATE = 64
LIMITS = {"wall": 1.05, "late": 1.05, "ttft": 1.10}  # priced over plain, medians; fixed beforehand
KINDS = ("creative", "long continuation", "prose")
LINE = "The ferry to the island leaves at seven, at noon and at five, and the last one waits for the bus."
REPEAT = f"Write this line twenty times, each on a line of its own, and nothing else: {LINE}"
SEED = 11


def pairs(common: Setting, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each pair, and at the end of each setting one for the text that repeats itself."""
    rows: list[dict[str, Any]] = []
    prose = [(kind, text) for kind, text in bases() if kind in KINDS]
    source = unique(SEED, prose)
    for clients in (c for c in args.clients if c in (1, 4)):
        with servers(common, (PRICED, PLAIN), clients) as up:
            for fill in args.context_fill:
                for number in range(args.runs + 1):  # the first pair warms up
                    before = [filler(up[PLAIN], fill, rng=random.Random(f"{number} {c}")) for c in range(clients)]
                    texts = [before[c] + next(source)[1] for c in range(clients)]
                    row = {"clients": clients, "fill": fill, "run": number, **pair(up, texts, args, number)}
                    tell(row)
                    rows += [row] if number else []
                rows.append({"clients": clients, "fill": fill, **resumed(up[PRICED], clients, args.max_tokens)})
                print(json.dumps(rows[-1], ensure_ascii=False), file=sys.stderr)
    return rows


def pair(up: dict[str, Running], texts: list[str], args: argparse.Namespace, number: int) -> dict[str, Any]:
    heard = {}
    for name in (PRICED, PLAIN) if number % 2 else (PLAIN, PRICED):
        load = Load(up[name].url, len(texts), texts, args.max_tokens, each=1, temperature=1.0)
        load.extra = {"seed": SEED + number, "ignore_eos": True}
        heard[name] = drive(load)
    row: dict[str, Any] = {name: times(h, args.max_tokens) for name, h in heard.items()}
    row["ratio"] = {key: row[PRICED][key] / row[PLAIN][key] for key in LIMITS if row[PLAIN][key]}
    said = [a.speculative or {} for a in heard[PRICED].requests]
    row["drafted"] = sum(s.get("verified", 0) for s in said)
    row["accepted"] = sum(s.get("accepted", 0) for s in said)
    row["status"] = dict(up[PRICED].props()["speculative"]["drafters"])
    row["errors"] = [a.error for h in heard.values() for a in h.requests if a.error]
    return row


def times(heard: Heard, max_tokens: int) -> dict[str, float | None]:
    """Means over the clients; the wall time is that of the last."""
    good = [a for a in heard.requests if a.pieces]
    late = [seconds for a in good if (seconds := after(a, LATE / max_tokens)) is not None]
    return {
        "wall": heard.wall_s,
        "late": sum(late) / len(late) if late else None,
        "ttft": sum(a.pieces[0][0] - a.start for a in good) / len(good) if good else None,
    }


def after(asked: Asked, share: float) -> float | None:
    """Seconds from where a share of the characters was delivered to the end: on both sides the same place."""
    goal, seen = share * sum(n for _, n in asked.pieces), 0
    for t, n in asked.pieces:
        seen += n
        if seen >= goal:
            return asked.pieces[-1][0] - t
    return None


def resumed(server: Running, clients: int, max_tokens: int) -> dict[str, Any]:
    """What became of drafting in a text that repeats itself, after all the prose."""
    heard = drive(Load(server.url, clients, [REPEAT] * clients, max_tokens, each=1))
    said = [a.speculative or {} for a in heard.requests]
    return {
        "resumed": sum(s.get("accepted", 0) for s in said) > 0,
        "drafted": sum(s.get("verified", 0) for s in said),
        "accepted": sum(s.get("accepted", 0) for s in said),
        "length": [s.get("mean_acceptance_length") for s in said],
        "status": dict(server.props()["speculative"]["drafters"]),
        "errors": [a.error for a in heard.requests if a.error],
    }


def filler(server: Running, n_tokens: int, rng: random.Random) -> str:
    """Sentences of random words, about so many tokens."""
    if not n_tokens:
        return ""
    sentences, words = [], WORDS.split()
    each = server.count_tokens("The ferry near the mill was older than the crane and the ledger together. ")
    for _ in range(n_tokens // each):
        a, b, c, d = rng.sample(words, 4)
        sentences.append(f"The {a} near the {b} was older than the {c} and the {d} together. ")
    return "".join(sentences)


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for clients, fill in dict.fromkeys((row["clients"], row["fill"]) for row in rows):
        here = [row for row in rows if (row["clients"], row["fill"]) == (clients, fill)]
        runs = [row for row in here if "ratio" in row]
        ratios = {
            key: spread([r["ratio"][key] for r in runs]) for key in LIMITS if all(key in r["ratio"] for r in runs)
        }
        found.append(
            {
                "clients": clients,
                "fill": fill,
                **ratios,
                "held": all(key in ratios and ratios[key]["median"] <= limit for key, limit in LIMITS.items()),
                "drafted": sum(r["drafted"] for r in runs),
                "accepted": sum(r["accepted"] for r in runs),
                "status": runs[-1]["status"] if runs else {},
                "errors": sum(len(r["errors"]) for r in here),
                "resumed": next((r for r in here if "resumed" in r), None),
            }
        )
    return found


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    limits = [f"{key} (asked {limit:.2f})" for key, limit in LIMITS.items()]
    head = ["clients", "context", *limits, "held", "drafted", "accepted", "status", "resumed"]
    lines = []
    for s in summary(rows):
        status = "; ".join(f"{name}: {word}" for name, word in s["status"].items())
        again = s["resumed"] or {}
        lines.append(
            [str(s["clients"]), str(s["fill"]), *(ranged(s.get(key)) for key in LIMITS), "yes" if s["held"] else "NO",
             str(s["drafted"]), str(s["accepted"]), status,
             f"{again.get('accepted')} of {again.get('drafted')} accepted" if again.get("resumed") else "NO"]
        )  # fmt: skip
    return table(head, lines)


def tell(row: dict[str, Any]) -> None:
    said = ", ".join(f"{key} {value:.3f}" for key, value in row["ratio"].items())
    print(
        f"{row['clients']} clients, {row['fill']} tokens before, pair {row['run']}: {said}; "
        f"{row['accepted']} of {row['drafted']} accepted; {row['status']} {row['errors'] or ''}",
        file=sys.stderr, flush=True,
    )  # fmt: skip
