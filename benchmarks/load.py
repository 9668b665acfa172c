"""Load: 1, 2, 4 and 8 clients at once on Slipstream, priced and plain, and on llama-server, in turn on the loopback.

    python benchmarks/load.py [-m MODEL] [--llama-server PATH] [--clients 1 2 4 8] [--seconds 60] [--rounds 3]

A closed loop: each client streams an answer, then asks the next prompt. Prompts are natural, of many kinds, and none
comes twice within a load; in each round all servers get the same ones. The seconds of each server are made of rounds,
in an order that rotates; the servers that have no work stay up, and what they take of the processor is reported. What
counts is what was delivered within the round: an answer that ends later counts by the share of its characters.
TTFT: from the request to the first text. Per token: (last - first text) / (tokens - 1) of an answer. Gap: between
deliveries. `--t11` asks another question: is drafting ever slower than not? See load_t11.py.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import load_t11
from llama_server import PROGRAM, version
from load_client import Load, drive
from load_prompts import unique
from load_servers import PLAIN, PRICED, Running, Setting, servers
from load_tables import figures, markdown, summary
from results import FOLDER
from slipstream.advise.counters import Counters, between
from slipstream.advise.provenance import busy, provenance
from slipstream.errors import SlipstreamError
from slipstream.hub import resolve
from slipstream.models.llamacpp import library
from slipstream.models.machine import usable_cores

SEED = 20261130
MOST = 40.0  # requests that a load may finish in a second; only bounds how many prompts are handed over
IDLE_S = 0.02  # of a processor, for servers without work: more is reported as a fault


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-m", "--model", default="smollm2-135m")
    add("--draft", default="suffix,predicted", help="what the priced server drafts with")
    add("--llama-server", type=Path, help="a llama-server of the same llama.cpp; without it only Slipstream runs")
    add("--stock", action="store_true", help="keep Slipstream's kernels from a llama-server that could use them")
    add("--contestants", nargs="*", choices=(PRICED, PLAIN, PROGRAM), help="only these")
    add("--clients", type=int, nargs="*", default=(1, 2, 4, 8))
    add("--seconds", type=float, default=60.0, help="for each server at each number of clients, all rounds together")
    add("--rounds", type=int, default=3)
    add("--max-tokens", type=int, default=128)
    add("--temperature", type=float, default=0.0)
    add("--ctx", type=int, default=2048, help="tokens of a slot")
    add("--kv-type", default="f16")
    add("--threads", type=int, default=0, help="default: the usable cores")
    add("--out", default="load")
    add("--t11", action="store_true", help="prose at temperature 1, priced beside plain: case T11 over HTTP")
    add("--runs", type=int, default=5, help="pairs of runs, with --t11")
    add("--context-fill", type=int, nargs="*", default=(0,), help="tokens of text before each prompt, with --t11")
    return parser.parse_args()


def setting(args: argparse.Namespace) -> Setting:
    return Setting(
        args.model, resolve(args.model), args.ctx, args.threads or usable_cores(), args.kv_type, args.draft,
        args.llama_server, None if args.stock else kernels(args.llama_server),
    )  # fmt: skip


def kernels(binary: Path | None) -> Path | None:
    """Slipstream's, where llama-server can be given them: only a build with shared libraries lets others answer."""
    if binary is None or not any(binary.resolve().parent.glob("libggml-cpu*")):
        return None
    return library.own_kernels().path


def contestants(args: argparse.Namespace) -> list[str]:
    known = [PRICED, PLAIN, *([PROGRAM] if args.llama_server else [])]
    return [name for name in known if not args.contestants or name in args.contestants]


def loads(args: argparse.Namespace, common: Setting) -> Iterator[dict[str, Any]]:
    """A row for each number of clients, round and server."""
    names, source = contestants(args), unique(SEED)
    for clients in args.clients:
        with servers(common, names, clients) as up:
            for server in up.values():
                warm_up(server, clients, [next(source)[1] for _ in range(clients)])
            for number in range(args.rounds):
                seconds = args.seconds / args.rounds
                texts = [text for _, text in itertools.islice(source, int(seconds * MOST) + clients)]
                rest = number % len(names)
                used = 0
                for name in [*names[rest:], *names[:rest]]:
                    row = one(up, name, Load(up[name].url, clients, texts, args.max_tokens, seconds), args.temperature)
                    used = max(used, row["asked"])
                    tell(row)
                    yield {"round": number, **row}
                source = itertools.chain(((("", text)) for text in texts[used:]), source)


def warm_up(server: Running, clients: int, texts: list[str]) -> None:
    drive(Load(server.url, clients, texts, 32, each=1))


def one(up: dict[str, Running], name: str, load: Load, temperature: float) -> dict[str, Any]:
    """One server's share of a round."""
    load.temperature = temperature
    before, cpu = up[name].counters(), {n: s.cpu_s() for n, s in up.items()}
    heard = drive(load)
    took = {n: (s.cpu_s() - cpu[n]) / heard.wall_s for n, s in up.items()}
    tokens = sum(a.completion_tokens for a in heard.requests)
    counted, alone = between(before, up[name].counters(), tokens or None)
    return {
        "contestant": name,
        "clients": load.clients,
        **figures(heard, load.seconds),
        **speculation(counted if alone else Counters()),
        "server_cpu": took.pop(name),
        "idle_cpu": max(took.values(), default=0.0),
        "memory": up[name].memory(),
        "errors": [a.error for a in heard.requests if a.error],
    }


def speculation(counted: Counters) -> dict[str, Any]:
    """From the server's own counters, of exactly this round; nothing where it does not tell."""
    return {
        "drafted": counted.drafted,
        "accepted": counted.accepted,
        "acceptance_rate": counted.acceptance_rate,
        "length_with_draft": counted.length_with_draft,
    }


def tell(row: dict[str, Any]) -> None:
    words = [f"{row['clients']} clients {row['contestant']}: {row['tps']:.1f} tok/s, {row['asked']} requests"]
    words += [f"TTFT {1e3 * statistics.median(row['ttft']):.0f} ms"] if row["ttft"] else []
    words += [f"{100 * row['acceptance_rate']:.0f} % accepted"] if row["acceptance_rate"] is not None else []
    words += [f"{len(row['errors'])} ERRORS: {row['errors'][0]}"] if row["errors"] else []
    words += [f"IDLE SERVERS TOOK {100 * row['idle_cpu']:.0f} % of a processor"] if row["idle_cpu"] > IDLE_S else []
    print(", ".join(words), file=sys.stderr, flush=True)


def about(args: argparse.Namespace, common: Setting) -> dict[str, Any]:
    found = {name: value for name, value in vars(args).items() if name != "llama_server"}
    if args.llama_server:
        found |= {"llama_server": version(args.llama_server), "llama_server_kernels": common.kernels is not None}
    return found | {"threads": common.threads, "load_before": busy()}


def run(args: argparse.Namespace) -> None:
    common = setting(args)
    said = about(args, common)
    models = {"target": common.path}
    if args.t11:
        rows = load_t11.pairs(common, args)
        text, result = load_t11.markdown(rows), load_t11.summary(rows)
    else:
        rows = list(loads(args, common))
        text, result = markdown(rows), summary(rows)
    write(args.out, {"load": said, "summary": result, "rows": [slim(row) for row in rows]}, models)
    print(text)


def slim(row: dict[str, Any]) -> dict[str, Any]:
    """Without what is long and told by the summary."""
    return {name: value for name, value in row.items() if name != "gaps"}


def write(name: str, result: dict[str, Any], models: dict[str, Path]) -> None:
    path = FOLDER / f"{name}-{datetime.date.today().isoformat()}.json"
    path.write_text(json.dumps({**result, "provenance": provenance(models)}, ensure_ascii=False) + "\n")
    print(f"wrote {path.relative_to(FOLDER.parent.parent)}", file=sys.stderr)


def main() -> None:
    try:
        run(options())
    except SlipstreamError as e:
        sys.exit(f"error: {e.message}\n  hint: {e.hint}" if e.hint else f"error: {e.message}")
    except KeyboardInterrupt:
        sys.exit("stopped")


if __name__ == "__main__":
    main()
