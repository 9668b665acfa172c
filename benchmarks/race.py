"""The race: the same prompts, target file, threads, context and caps through Slipstream and llama-server, in turn.

    python benchmarks/race.py [-m MODEL] [--draft MODEL] [--tuned-draft FILE] [--llama-server PATH] [--rounds 3]

Every prompt goes through every contestant, in an order that rotates, before the next prompt begins; that is a round.
Nothing learnt outlives a prompt: drafters and policies are made to forget, servers are started anew. Slipstream drafts
with the tuned file if there is one; llama-server with the file as downloaded, and in a second table with the tuned one.
What was measured is written after every prompt: results/NAME-DATE.json, and the tables beside it in Markdown.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from contestants import KNOWING, PLAIN, Answer, Asked, Contestant, Setting, Slipstream, names, open_all
from llama_server import PROGRAM, TUNED_N_MAX, LlamaServer, Mode, modes, version
from race_tables import duels, figures, markdown, plain_of, tps
from results import FOLDER, prompts
from slipstream import Engine, SamplingParams
from slipstream.advise.compare import Comparison, compare
from slipstream.advise.provenance import provenance
from slipstream.errors import CapabilityError, InputError, SlipstreamError, UnknownName
from slipstream.hub import resolve
from slipstream.models.llamacpp import library
from slipstream.models.machine import usable_cores

HERE = Path(__file__).parent
FILES = ("model", "prompts", "draft", "tuned_draft", "llama_server")
SEED = 20261130
WORDS = """barley bridge candle canvas cellar chestnut clay copper courtyard crane ferry gravel harvest kettle ladder
lantern ledger linen meadow mill orchard pasture pebble pier plough quarry quilt rafter river saddle shovel shutter
slate smoke stable stove thicket timber tower valley vessel vineyard wagon wharf window wool"""


def order(contestants: Sequence[str], turn: int) -> list[str]:
    """Rotated by `turn`; those that need to know the plain answer never come before it."""
    turn %= max(len(contestants), 1)
    rotated = [*contestants[turn:], *contestants[:turn]]
    if PLAIN not in rotated:
        return rotated
    early = [n for n in rotated[: rotated.index(PLAIN)] if n in KNOWING]
    rest = [n for n in rotated if n not in early]
    at = rest.index(PLAIN) + 1
    return [*rest[:at], *early, *rest[at:]]


def filler(engine: Engine, n_tokens: int) -> str:
    """Sentences of random words, at most so many tokens of them; the same ones each time."""
    rng, text = random.Random(SEED), ""
    while True:
        a, b, c, d = rng.sample(WORDS.split(), 4)
        longer = f"{text}The {a} near the {b} was older than the {c} and the {d} together. "
        if len(engine.tokenizer.encode(longer)) > n_tokens:
            return text
        text = longer


class Race:
    """Contestants, prompts and what was measured so far."""

    def __init__(self, racers: Sequence[Contestant], judge: Engine, tables: dict[str, int]) -> None:
        self.racers = {r.name: r for r in racers}
        self.judge, self.tables = judge, tables
        self.runs: list[dict[str, Any]] = []
        self.plain: dict[int, tuple[int, ...]] = {}
        self._judged: dict[tuple[int, tuple[int, ...]], Comparison] = {}

    def heat(self, asked: Asked, number: int, turn: int) -> list[dict[str, Any]]:
        """One prompt through all contestants, and then what became of the text."""
        answers: dict[str, Answer | CapabilityError] = {}
        for name in order(list(self.racers), turn):
            try:
                answers[name] = answer = self.racers[name].answer(asked, self.plain.get(asked.number))
            except CapabilityError as e:  # one that fails must not end the race
                answers[name] = e
                continue
            if name == PLAIN:
                self.plain.setdefault(asked.number, answer.ids)
        rows = [self.row(asked, number, name, a) for name, a in answers.items()]
        self.runs += rows
        return rows

    def row(self, asked: Asked, number: int, name: str, answer: Answer | CapabilityError) -> dict[str, Any]:
        program = self.racers[name].program
        row: dict[str, Any] = {
            "contestant": name,
            "program": program,
            "table": self.tables.get(name, 0),
            "kind": asked.kind,
            "prompt": asked.number,
            "round": number,
        }
        if isinstance(answer, CapabilityError):
            return {**row, "error": f"{answer.message}; {answer.hint}"}
        row |= {k: v for k, v in answer.__dict__.items() if k != "ids"}
        said = self.sameness(asked, program, answer)
        return {**row, **(said.as_dict() if said else {"verdict": None, "at": None, "gap": None})}

    def sameness(self, asked: Asked, program: str, answer: Answer) -> Comparison | None:
        """Against Slipstream's plain decoding; None where another text is right (another program's dice)."""
        plain = self.plain.get(asked.number)
        if plain is None or (program == PROGRAM and not asked.sampling.greedy):
            return None
        key = asked.number, answer.ids
        if key not in self._judged:
            self._judged[key] = compare(self.judge, asked.ids, asked.sampling, plain, answer.ids)
        return self._judged[key]

    def close(self) -> None:
        for racer in self.racers.values():
            racer.close()


def progress(done: str, asked: Asked, rows: Sequence[dict[str, Any]]) -> None:
    """A line: plain speeds, and the others as ratios to their own program's."""
    ran = {r["contestant"]: r for r in rows if "error" not in r}
    words = []
    for name, row in ran.items():
        base, speed = ran.get(plain_of(row["program"])), tps(row)
        if name == plain_of(row["program"]) or base is None:
            words.append(f"{name} {speed or 0:.1f}/s")
        else:
            words.append(f"{name} {(speed or 0) / (tps(base) or 1):.2f}x")
        words[-1] += {"identical": "", "near tie": " ~", "mismatch": " WRONG"}.get(row["verdict"] or "identical", "")
    words += [f"{r['contestant']} FAILED" for r in rows if "error" in r]
    print(f"{done} {asked.kind} #{asked.number}: " + " | ".join(sorted(words)), file=sys.stderr, flush=True)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("-m", "--model", default="qwen2.5-coder-1.5b", help="the target")
    add("--draft", help="the draft model as downloaded")
    add("--tuned-draft", help="a faster file of the draft model")
    add("--n-max", type=int, nargs="*", default=TUNED_N_MAX, help="draft lengths for llama-server's tuned modes")
    add("--llama-server", type=Path, help="a llama-server of the same llama.cpp; without it only Slipstream runs")
    add("--stock", action="store_true", help="run llama-server without Slipstream's kernels")
    add("--contestants", nargs="*", default=["*"], help="names or patterns such as 'llama-server:ngram-*'")
    add("--fixed", type=int, metavar="K", help="Slipstream drafts K tokens, instead of pricing each step")
    add("--prompts", type=Path, default=HERE.parent / "src" / "slipstream" / "data" / "suite.jsonl")
    add("--kinds", nargs="*", help="only these kinds of work")
    add("--limit", type=int, help="prompts of each kind")
    add("--rounds", type=int, default=3)
    add("--max-tokens", type=int, default=256)
    add("--temperature", type=float, default=0.0)
    add("--threads", type=int, default=0, help="default: the usable cores")
    add("--context-fill", type=int, default=0, metavar="N", help="about N tokens of filler text before each prompt")
    add("--budget", type=float, default=float("inf"), help="seconds; no prompt begins after them")
    add("--out", default="race")
    return parser.parse_args()


def chosen(args: argparse.Namespace) -> list[tuple[int, str, str]]:
    """Number in the file, kind and text of each prompt to run. Raises UnknownName for a kind that is not there."""
    lines = prompts(args.prompts)
    known = dict.fromkeys(line["kind"] for line in lines)
    for kind in args.kinds or ():
        if kind not in known:
            raise UnknownName("kind", kind, known)
    by_kind = {
        kind: [(i, kind, line["prompt"]) for i, line in enumerate(lines) if line["kind"] == kind][: args.limit]
        for kind in args.kinds or known
    }
    return [work for works in by_kind.values() for work in works]


def wanted(patterns: Sequence[str], known: Sequence[str]) -> list[str]:
    """Contestants by name or pattern, with the plain decoding that their ratios and texts need."""
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in known):
            raise UnknownName("contestant", pattern, known)
    needed = {PLAIN}
    if any(fnmatch(name, p) for p in patterns for name in known if name.startswith(PROGRAM)):
        needed.add(plain_of(PROGRAM))
    return [name for name in known if name in needed or any(fnmatch(name, p) for p in patterns)]


def ask(args: argparse.Namespace, works: Sequence[tuple[int, str, str]], engine: Engine) -> list[Asked]:
    """The prompts through the chat template, behind the filler if there is one."""
    before = filler(engine, args.context_fill) if args.context_fill else ""
    sampling = SamplingParams(temperature=args.temperature, seed=SEED)
    return [
        Asked(
            number,
            kind,
            tuple(engine.encode_chat([{"role": "user", "content": f"{before}\n\n{text}" if before else text}])),
            args.max_tokens,
            sampling,
            shared=bool(before),
        )
        for number, kind, text in works
    ]


def context(args: argparse.Namespace, works: Sequence[tuple[int, str, str]]) -> int:
    """Tokens that hold any of the prompts and its answer: a text has fewer tokens than bytes."""
    need: int = args.context_fill + max(len(text.encode()) for _, _, text in works) // 2 + args.max_tokens + 128
    return max(1024, -(-need // 256) * 256)


def lineup(args: argparse.Namespace, setting: Setting) -> tuple[list[str], dict[str, Mode]]:
    """The names of all that run, and the servers' modes by name."""
    servers: list[Mode] = []
    if args.llama_server:
        draft, tuned = (resolve(f) if f else None for f in (args.draft, args.tuned_draft))
        servers = modes(draft, tuned, args.n_max)
    known = [*names(setting), *(m.name for m in servers)]
    runs = wanted(args.contestants, known)
    return runs, {m.name: m for m in servers if m.name in runs}


def run(args: argparse.Namespace) -> None:
    if args.rounds < 1:
        raise InputError(f"--rounds is {args.rounds}", "give 1 or more")
    works = chosen(args)
    threads = args.threads or usable_cores()
    setting = Setting(args.model, args.tuned_draft or args.draft, context(args, works), threads, args.fixed)
    runs, servers = lineup(args, setting)
    about: dict[str, Any] = dict(vars(args))
    about |= {k: Path(about[k]).name for k in FILES if about[k]}  # no machine's paths
    about |= {"threads": threads, "n_ctx": setting.n_ctx, "budget": min(args.budget, 1e9)}
    if servers:
        about["llama_server_version"] = version(args.llama_server)
    files = {"target": args.model, "draft": args.draft, "tuned_draft": args.tuned_draft}
    origin = provenance({role: resolve(ref) for role, ref in files.items() if ref}, threads)
    mine = open_all([n for n in runs if n not in servers], setting)
    judge = mine[0].engine
    racers: list[Contestant] = [*mine]
    target = resolve(args.model)
    kernels = None if args.stock else library.own_kernels().path
    about["llama_server_kernels"] = kernels is not None
    ends = judge.tokenizer.ends
    racers += [LlamaServer(m, args.llama_server, target, setting, ends, kernels) for m in servers.values()]
    race = Race(racers, judge, {m.name: m.table for m in servers.values()})
    try:
        everything = ask(args, works, judge)
        warm_up(mine, everything[0])
        rounds(race, everything, args, about, origin)
    finally:
        race.close()


def warm_up(mine: Sequence[Slipstream], asked: Asked) -> None:
    """A few tokens through each engine, of a text that is none of the prompts."""
    for racer in mine:
        racer.answer(replace(asked, ids=asked.ids[: len(asked.ids) // 2], max_tokens=8), None)


def rounds(
    race: Race, everything: Sequence[Asked], args: argparse.Namespace, about: dict[str, Any], origin: dict[str, Any]
) -> None:
    start, turn, total = time.perf_counter(), 0, args.rounds * len(everything)
    for number in range(args.rounds):
        for asked in everything:
            if turn and time.perf_counter() - start > args.budget:
                print("the budget is spent", file=sys.stderr)
                return
            rows = race.heat(asked, number, turn)
            turn += 1
            progress(f"[{turn}/{total}]", asked, rows)
            write(args.out, race, about | {"complete": turn == total}, origin)


def write(name: str, race: Race, about: dict[str, Any], origin: dict[str, Any]) -> None:
    """Replace the files of this race as a whole, so that an interruption leaves the last complete ones."""
    result = {
        "race": about,
        "kinds": figures(race.runs),
        "duels": duels(race.runs),
        "provenance": origin,
        "plain_ids": race.plain,
        "runs": race.runs,
    }
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}-{datetime.date.today().isoformat()}.json"
    title = f"# {name}: {about['model']}, {origin['machine']['cpu']}, {about['threads']} threads, {origin['date']}\n\n"
    for file, text in (
        (path, json.dumps(result, indent=1, ensure_ascii=False) + "\n"),
        (path.with_suffix(".md"), title + markdown(race.runs)),
    ):
        part = file.with_suffix(file.suffix + ".part")
        part.write_text(text)
        part.replace(file)


def main() -> None:
    try:
        run(options())
    except SlipstreamError as e:
        sys.exit(f"error: {e.message}\n  hint: {e.hint}" if e.hint else f"error: {e.message}")
    except KeyboardInterrupt:
        sys.exit("stopped; what was measured is in benchmarks/results")


if __name__ == "__main__":
    main()
