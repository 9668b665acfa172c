"""The part of `slipstream bench` that measures servers: one, or two in turn."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Any

from rich.table import Table

from slipstream.cli.common import Stoppable, console, say, warn_if_busy
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.advise.endpoint import Endpoint
    from slipstream.advise.measure import Work
    from slipstream.advise.servers import Row, Session, Side

ENDPOINT_HELP = (
    "Measure an OpenAI-compatible server instead, where --model is its name for a model, if it has several. "
    "Two servers are run in turn and compared."
)
API_KEY_HELP = "Environment variable that holds the servers' API key."


def bench_endpoints(
    urls: Sequence[str],
    works: Sequence[Work],
    config: dict[str, Any],
    model: str,
    api_key_env: str,
) -> tuple[dict[str, Any], int]:
    """Measure, print the table, and return the result and the exit code: 1 when requests failed."""
    from slipstream.advise.endpoint import Endpoint
    from slipstream.advise.servers import Session

    if len(urls) > 2:
        raise InputError(f"{len(urls)} servers are named", "give one --endpoint, or two to compare them")
    key = _key(api_key_env)
    warn_if_busy()
    with ExitStack() as stack, Stoppable() as stopped:
        endpoints = []
        for url in urls:
            endpoints.append(Endpoint(url, model, key))
            stack.callback(endpoints[-1].close)
        session = Session(endpoints, works, config["max_tokens"], config["raw"])
        session.open()
        for why, kinds in _by_reason(session.left_out).items():
            say(f"warning: {len(kinds)} prompts ({', '.join(dict.fromkeys(kinds))}) are left out: {why}")
        total = config["runs"] * len(session.works)
        for n, work in enumerate(session.rounds(config["runs"], stopped), 1):
            say(f"  {n}/{total} {work.kind}")
        rows, failures = session.rows(), session.failures()
        notes = [session.notes(e) for e in range(len(endpoints))]
    _show(endpoints, rows)
    _say_what_happened(session, failures, notes, stopped.hit)
    result = {
        "endpoints": [_facts(e, own) for e, own in zip(endpoints, notes, strict=True)],
        "rows": [row.as_dict() for row in rows],
        "failures": failures,
        "left_out": session.left_out,
        "requests": _requests(session),
        "config": config | {"temperature": 0},
        "gave_up": session.gave_up,
        "interrupted": stopped.hit,
        "provenance": _provenance(),
    }
    return result, 130 if stopped.hit else 1 if failures else 0


def _key(name: str) -> str:
    if not name:
        return ""
    if not (key := os.environ.get(name, "").strip()):
        raise InputError(f"the environment variable {name} is not set", "export it with the key, or name another one")
    return key


def _by_reason(left_out: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for kind, why in left_out:
        found.setdefault(why, []).append(kind)
    return found


def _show(endpoints: Sequence[Endpoint], rows: Sequence[Row]) -> None:
    from slipstream.advise.servers import NAMES

    names = NAMES[: len(endpoints)]
    two = len(endpoints) == 2
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("kind of work", no_wrap=True)
    titles = ["tok/s", "first\ntoken s", "acceptance\nrate", "acceptance\nlength"]
    each = [[f"{title}\n{name}" if two else title for name in names] for title in titles]
    if two:
        each[0] += ["speed\nB/A", "95 %\ninterval"]
        each += [["same\ntext"]]
    for title in (*chain.from_iterable(each), "answers", *(["failed"] if _failed(rows) else [])):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(*_cells(row, _failed(rows)))
    console().print(table)
    for name, endpoint in zip(names, endpoints, strict=True):
        about = ", ".join(filter(None, (endpoint.address, endpoint.model, endpoint.server)))
        print(f"{name}: {about}" if two else about)


def _cells(row: Row, failed: bool) -> list[str]:
    from slipstream.cli.show import number, percent

    def each(show: Any) -> list[str]:
        return [show(side) for side in row.sides]

    cells = [row.kind, *each(lambda s: number(s.tps))]
    if len(row.sides) == 2:
        low_high = f"{row.interval[0]:.2f}-{row.interval[1]:.2f}" if row.interval else "-"
        cells += ["-" if row.ratio is None else f"{row.ratio:.2f}x", low_high]
    cells += each(lambda s: number(s.first_token_s, 2))
    cells += each(lambda s: percent(s.counters.acceptance_rate))
    cells += each(lambda s: number(s.counters.mean_acceptance_length, 2))
    if len(row.sides) == 2:
        cells.append(f"{row.same_text} of {row.compared}")
    cells.append(_both(row.sides, "answers"))
    return [*cells, _both(row.sides, "failed")] if failed else cells


def _both(sides: Sequence[Side], name: str) -> str:
    return ", ".join(str(n) for n in dict.fromkeys(getattr(side, name) for side in sides))


def _failed(rows: Sequence[Row]) -> bool:
    return any(side.failed for row in rows for side in row.sides)


def _say_what_happened(
    session: Session, failures: Sequence[dict[str, Any]], notes: Sequence[Sequence[str]], interrupted: bool
) -> None:
    if interrupted:
        say("stopped by Ctrl-C: these are the runs that were complete")
    elif session.gave_up:
        say("stopped early: a server failed again and again")
    two = len(session.endpoints) == 2
    reasons = dict.fromkeys((f["server"], f["error"], f["hint"]) for f in failures)
    for server, error, hint in reasons:
        times = sum((f["server"], f["error"], f["hint"]) == (server, error, hint) for f in failures)
        say(f"failed{' (' + server + ')' if two else ''}, {times} of the requests: {error} ({hint})")
    for name, own in zip("AB", notes, strict=False):
        for note in own:
            say(f"note{' on ' + name if two else ''}: {note}")


def _facts(endpoint: Endpoint, notes: Sequence[str]) -> dict[str, Any]:
    return {"url": endpoint.address, "model": endpoint.model, "server": endpoint.server, "notes": list(notes)}


def _requests(session: Session) -> list[dict[str, Any]]:
    """Every request with its times and counts; no texts."""
    from slipstream.advise.servers import NAMES

    return [
        {"server": NAMES[e], "kind": work.kind, "prompt": i, "run": number, **found.as_dict()}
        for i, (work, runs) in enumerate(zip(session.works, session.tries, strict=True))
        for number, run in enumerate(runs)
        for e, found in enumerate(run)
    ]


def _provenance() -> dict[str, Any]:
    """Of this side; what the server runs on, it does not say."""
    from slipstream.advise.provenance import machine, versions

    now = datetime.datetime.now(datetime.timezone.utc)
    return {"date": now.isoformat(timespec="seconds"), "versions": versions(), "client": machine()}
