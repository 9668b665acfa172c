"""Prompts for a load: natural, of many kinds, and never the same twice."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from results import prompts

HERE = Path(__file__).parent
FILES = (
    HERE.parent / "src" / "slipstream" / "data" / "suite.jsonl",
    HERE / "prompts-parity.jsonl",
    HERE / "prompts-code-edit.jsonl",
    HERE / "prompts-mixed.jsonl",
)
WHO = """baker beekeeper carpenter clerk electrician farmer gardener journalist librarian locksmith mechanic midwife
miller nurse painter pharmacist plumber potter sailor student surveyor tailor teacher translator"""
WHERE = """Aarhus Bergen Bologna Cork Ghent Graz Izmir Leeds Lublin Malmö Nantes Oulu Porto Riga Split Tartu Turku
Utrecht Valencia Zadar"""
WHY = (
    "I need this for my work.",
    "This is for a friend.",
    "It is for my own notes.",
    "I have to hand this in today.",
    "My neighbour asked me for it.",
    "It is for our notice board.",
    "I would like to understand it better.",
    "A customer asked me this morning.",
    "My daughter wants to know.",
    "Please be careful, it will be printed.",
    "I read about it yesterday.",
    "We talked about it at lunch.",
)


def bases() -> list[tuple[str, str]]:
    """Kind and text of the prompts in the files that are mostly in Latin letters: small models know no others."""
    lines = [line for path in FILES for line in prompts(path)]
    latin = [line for line in lines if sum(c > "ɏ" for c in line["prompt"]) < 0.1 * len(line["prompt"])]
    return [(line.get("kind", "mixed"), line["prompt"]) for line in latin]


def unique(seed: int, texts: Sequence[tuple[str, str]] | None = None) -> Iterator[tuple[str, str]]:
    """Kind and text, in turn through all texts. Each begins with words of its own, so that no cache holds more of it
    than the chat template's beginning."""
    rng = random.Random(seed)
    texts = list(texts or bases())
    leads = [f"I am a {who} in {where}. {why}" for who, where, why in product(WHO.split(), WHERE.split(), WHY)]
    rng.shuffle(leads)
    used = 0
    while used < len(leads):
        rng.shuffle(texts)
        for kind, text in texts[: len(leads) - used]:
            yield kind, f"{leads[used]} {text}"
            used += 1
    raise RuntimeError(f"more than {len(leads)} prompts were asked for")
