"""A cheaper draft model: variants of one file, each judged by its price and by what it guesses of the target's text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from slipstream.advise import measure
from slipstream.advise.rehearse import Script
from slipstream.advise.replay import Forecast, forecast, replay
from slipstream.advise.scale import Scale
from slipstream.engine import Engine
from slipstream.errors import InputError
from slipstream.models.gguf import GGUFHeader, read_header
from slipstream.models.llamacpp.quantize import Recipe, layers_can_go, quantize

log = logging.getLogger("slipstream")
TARGET_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17)
DRAFT_SIZES = (1, 2)
BLOCK = 2  # layers that are tried together
_NEVER = lambda: False  # noqa: E731


@dataclass(frozen=True)
class Measured:
    """One variant. `size` is in bytes, `draft_s` the seconds of one token, `agreement` the share of the target's tokens
    that were its first guess, `forecasts` what is predicted for each kind of text."""

    recipe: Recipe
    quantisation: str
    n_layers: int
    size: int
    draft_s: float
    agreement: float
    forecasts: Mapping[str, Forecast]

    @property
    def speedup(self) -> float:
        """Of all texts together, each kind drafted in the way that suits it."""
        seconds = sum(f.seconds for f in self.forecasts.values())
        return sum(f.plain_s for f in self.forecasts.values()) / seconds if seconds else 1.0

    def as_dict(self) -> dict[str, Any]:
        kinds = {k: {"speedup": f.speedup, "depth": f.depth, "sure": f.sure} for k, f in self.forecasts.items()}
        own = {n: getattr(self, n) for n in ("quantisation", "n_layers", "size", "draft_s", "agreement", "speedup")}
        return {"recipe": str(self.recipe), **own, "kinds": kinds}


def write(
    engine: Engine, works: Sequence[measure.Work], max_tokens: int, stopped: Callable[[], bool] = _NEVER
) -> Iterator[Script]:
    """The target's greedy answer to each prompt; what was stopped half way, or cannot be used, is left out."""
    for work in works:
        try:
            request = work.request(engine, max_tokens=max_tokens)
            answer = measure.run(engine, request, stopped=stopped)
        except InputError as e:  # too long, or a chat that the model's template does not take
            log.warning("a prompt (%s) is left out: %s", work.kind, e.message)
            continue
        if answer.finish_reason == "cancelled":
            return
        if len(answer.ids) > 1:
            yield Script(work.kind, measure.prompt_ids(engine, request), answer.ids)


def recipes(header: GGUFHeader) -> list[Recipe]:
    """What is worth a try, the model as given first. Which kernels are fast depends on CPU and build, so all are
    measured; but types in blocks of 256 that would not divide a row are others in disguise."""
    found = [Recipe(), *map(Recipe, ("q4_0", "iq4_nl", "q4_1", "q8_0"))]
    tied = all(t.name != "output.weight" for t in header.tensors)
    found.append(Recipe("q4_0", embedding="q8_0") if tied else Recipe("q4_0", output="q8_0"))
    if header.n_embd % 256 == 0:
        found += [Recipe("q4_k"), Recipe("q4_k", embedding="q6_k"), Recipe("q3_k"), Recipe("q2_k", embedding="q4_k")]
    return found


def space(header: GGUFHeader) -> int:
    """Bytes of disk that tuning takes at most: three files, the largest with 8.5 bits a weight."""
    return 3 * max(header.file_size, int(sum(prod(t.shape) for t in header.tensors) * 8.5 / 8))


class Tuning:
    """Measures variants one after the other; of their files in `folder` only the best one's stays.

    `target` stays open all the while: prices are weighed against its own. Ids from `n_shared` on are never drafted
    (0: all may be).
    """

    def __init__(
        self,
        draft: GGUFHeader,
        texts: Sequence[Script],
        target: Engine,
        folder: Path,
        n_shared: int = 0,
        threads: int = 0,
        stopped: Callable[[], bool] = _NEVER,
    ) -> None:
        self.draft, self.texts, self.folder = draft, texts, folder
        self._scale = Scale(target.model, [*texts[0].prompt, *texts[0].said])
        self.target_price = self._scale.price(target.model, TARGET_SIZES, True, rounds=3)
        self.n_shared, self.threads, self.stopped = n_shared, threads, stopped
        self.done: list[Measured] = []
        self.best: Measured | None = None
        self.file = draft.path  # of the best
        self._seen: set[object] = set()

    def measure(self, recipe: Recipe) -> Measured | None:
        """Build, price and replay a variant. None when stopped, or when it is the same as an earlier one.

        Raises ModelFileError when llama.cpp cannot make or load it.
        """
        if self.stopped():
            return None
        file = self.draft.path if recipe.as_given else self.folder / f"{len(self._seen)}.gguf"
        try:
            if not recipe.as_given:
                quantize(self.draft.path, file, recipe, self.threads)
            header = read_header(file)
            contents = (recipe.drop, *((t.name, t.type.name) for t in header.tensors))
            if contents in self._seen:
                return None
            self._seen.add(contents)
            found = self._judge(recipe, header)
            if found is not None:
                self.done.append(found)
                if self.best is None or found.speedup > self.best.speedup:
                    self._discard(self.file)
                    self.best, self.file = found, file
            return found
        finally:
            if file != self.file:
                self._discard(file)

    def _discard(self, file: Path) -> None:
        if file != self.draft.path:
            file.unlink(missing_ok=True)

    def _judge(self, recipe: Recipe, header: GGUFHeader) -> Measured | None:
        with Engine.open(str(header.path), None, threads=self.threads) as engine:
            model = engine.model
            price = self._scale.price(model, DRAFT_SIZES, False, rounds=11)
            traces = []
            for text in self.texts:
                if self.stopped():
                    return None
                traces.append(replay(model, text.prompt, text.said, text.kind, self.n_shared))
        hits = sum(int(t.hits.sum()) for t in traces)
        n = sum(len(t.hits) for t in traces)
        return Measured(
            recipe,
            header.quantization,
            header.n_layers,
            header.file_size,
            price(1),
            hits / n if n else 0.0,
            forecast(traces, self.target_price, price),
        )

    def shorter(self) -> Iterator[Measured]:
        """Variants of the best one with fewer layers: each block of two left out alone, then the least harmful ones
        together while that is predicted to be faster (four layers are tried in any case).

        The first and the last layers are left in peace: they do what no other can.
        """
        n = self.draft.n_layers
        if self.best is None or not layers_can_go(self.draft):
            return
        recipe = self.best.recipe
        alone = []
        for first in range(BLOCK, n - 2 * BLOCK + 1, BLOCK):
            if found := self.measure(replace(recipe, drop=tuple(range(first, first + BLOCK)))):
                alone.append(found)
                yield found
        alone.sort(key=lambda m: -m.agreement)
        drop, before = (alone[0].recipe.drop, alone[0]) if alone else ((), None)
        for other in alone[1 : n // (2 * BLOCK)]:
            drop = tuple(sorted((*drop, *other.recipe.drop)))
            found = self.measure(replace(recipe, drop=drop))
            if found is None:
                return
            yield found
            if before and found.speedup <= before.speedup:
                return
            before = found
