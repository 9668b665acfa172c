"""Several ways to draft, run in turn on one target: its weights, and those of each draft model, are loaded once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import psutil

from slipstream.advise import measure
from slipstream.advise.advice import Texts
from slipstream.advise.candidates import PLAIN, Candidate
from slipstream.advise.compare import compare
from slipstream.advise.evidence import Run
from slipstream.core.cost import Curve, Prices
from slipstream.core.policy import Fixed
from slipstream.core.ports import Drafter, Policy
from slipstream.core.priced import Priced
from slipstream.drafters.corpus import CorpusDrafter
from slipstream.drafters.corpus_files import Corpus
from slipstream.drafting import Drafting
from slipstream.engine import Engine
from slipstream.generation import Chunk, Request, Result
from slipstream.models.llamacpp.model import LlamaModel
from slipstream.opening import (
    Files,
    OpenOptions,
    curve_of,
    draft_drafter,
    draft_options,
    fit,
    load_model,
    target_options,
)


class Lineup:
    """Opens the target and every draft model in `ways`. Plain decoding (PLAIN) is always one of them.

    Raises as Engine.open does. `price_lists` holds what forwards cost, by model name; the target's is under PLAIN.
    """

    def __init__(
        self, target: str, ways: Sequence[Candidate], options: OpenOptions, corpus: Corpus | None = None
    ) -> None:
        from slipstream.models.llamacpp.tokenizer import LlamaTokenizer

        files = Files.find(target, PLAIN)
        self.options, self.corpus = fit(files, options), corpus
        self.models: dict[str, LlamaModel] = {}
        self.price_lists: dict[str, Curve] = {}
        self.engines: dict[str, Engine] = {}
        try:
            how = target_options(self.options)
            self.target = self.models[PLAIN] = load_model(files.target, how)
            self.price_lists[PLAIN] = curve_of(self.target, files.target, how)
            self.tokenizer = LlamaTokenizer(self.target.handle)
            self.engines[PLAIN] = Engine(self.target, self.tokenizer, name=files.target.path.name)
            for way in ways:
                self._open(target, way)
        except BaseException:
            self.close()
            raise

    def _open(self, target: str, way: Candidate) -> None:
        made: list[Drafter] = Drafting.of(way.value).create(weighed=way.k is None) if way.names else []
        if way.corpus and self.corpus is not None:
            made.append(CorpusDrafter(self.corpus))
        prices = {}
        if way.model is not None:
            files = Files.find(target, way.model)
            assert files.draft is not None and files.pair is not None  # a draft model was named
            small = draft_options(self.options, files.draft, self.target.caps.n_ctx)
            if way.model not in self.models:
                self.models[way.model] = load_model(files.draft, small)
                self.price_lists[way.model] = curve_of(self.models[way.model], files.draft, small, drafts=True)
            made.append(draft_drafter(self.models[way.model], files.pair, self.target, way.verify))
            prices[made[-1].name] = Prices(self.price_lists[way.model])
        most = replace(self.options.most(), width=way.width)
        policy: Policy = Priced(Prices(self.price_lists[PLAIN]), prices, most)
        policy = policy if way.k is None else Fixed(way.k, way.width)
        self.engines[way.draft] = Engine(self.target, self.tokenizer, made, policy, way.verify, way.draft)

    def run(
        self, draft: str, request: Request, stopped: Callable[[], bool] = lambda: False
    ) -> tuple[Result, Run] | None:
        """One way, with nothing left in any model of an earlier run; None when stopped before the end."""
        for model in self.models.values():
            model.truncate(0, 0)
        first: list[float] = []
        begin = time.perf_counter()

        def hear(chunk: Chunk) -> None:
            if chunk.tokens and not first:
                first.append(time.perf_counter() - begin)

        result = measure.run(self.engines[draft], request, hear, stopped)
        if result.finish_reason == "cancelled":
            return None
        s = result.stats
        at = s.verified_per_position, s.accepted_per_position
        counts = s.steps, s.verified, s.accepted, *at
        return result, Run(s.decode_s, s.emitted, first[0] if first else 0.0, *counts)

    def compared(self, request: Request, results: Mapping[str, Result], runs: Mapping[str, Run]) -> dict[str, Run]:
        """The runs of one request, each with what comparing its text with plain decoding's says, and the text's parts.

        Needs idle engines.
        """
        prompt = measure.prompt_ids(self.engines[PLAIN], request)
        plain, found = results[PLAIN], {}
        for name, run in runs.items():
            said: Texts = "not compared"  # a sampling verifier's text is another draw by right
            if self.engines[name].verify == "exact" or request.sampling.greedy:
                said = compare(self.engines[PLAIN], prompt, request.sampling, plain.ids, results[name].ids).verdict
            parts = [(segment.text, segment.origin) for segment in results[name].segments]
            found[name] = replace(run, texts=said, segments=parts)
        return found

    def close(self) -> None:
        for model in self.models.values():
            with suppress(Exception):
                model.close()
        self.models.clear()

    def __enter__(self) -> Lineup:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def resident() -> int:
    """Bytes of memory that this process holds now."""
    return int(psutil.Process().memory_info().rss)
