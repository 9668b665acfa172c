"""From what an advisor found out to an advice: speeds with intervals for each way and kind, verdicts, and a choice."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from slipstream.advise import advice as parts
from slipstream.advise.advice import ALL, Advice, Cell, Speed, Texts
from slipstream.advise.advisor import Advisor, Item
from slipstream.advise.candidates import PLAIN, Candidate
from slipstream.advise.evidence import TARGET, Run
from slipstream.advise.interval import Ratios
from slipstream.advise.provenance import cpu_model, model_file, provenance
from slipstream.advise.rehearse import Outcome
from slipstream.advise.secrets import masked
from slipstream.advise.verdict import Judged, choose, verdict
from slipstream.advise.wording import reason
from slipstream.core.cost import Curve
from slipstream.hub import resolve
from slipstream.models.gguf import read_header
from slipstream.models.memory import MemoryPlan
from slipstream.opening import Files, memory_plan

_TEXTS: tuple[Texts, ...] = ("mismatch", "near tie", "identical", "not compared")  # the worst one counts
_MOST = 0.8  # of the prompts: a way that was run on fewer is not judged
Outcomes = Mapping[str, Sequence[Outcome]]


@dataclass(frozen=True)
class Prices:
    """The price lists that the predictions were made with, and how they differ from the measured ones."""

    target: Curve
    drafts: Mapping[str, Curve]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class _Part:
    """One prompt, plain and drafted: seconds of decoding for the same tokens, and counts of the drafted one."""

    key: str
    kind: str
    plain_s: float
    seconds: float
    tokens: int
    steps: int
    verified: int
    accepted: int
    verified_at: Sequence[float]
    accepted_at: Sequence[float]
    first: tuple[float, float] | None = None
    texts: Texts = "not compared"


def conclude(
    advisor: Advisor, outcomes: Outcomes, prices: Prices, source: str, command: str, redact: bool = False
) -> Advice:
    """Raises ValueError when nothing was predicted yet."""
    ways = [way for way in advisor.usable if outcomes.get(way.draft)]
    if not ways:
        raise ValueError("nothing was predicted")
    predicted = {
        w.draft: [_predicted(i.key, o) for i, o in zip(advisor.items, outcomes[w.draft], strict=True)] for w in ways
    }
    tried = {} if prices.notes else {w.draft: _parts(advisor, w.draft) for w in ways if w.draft in advisor.tried}
    measured = {draft: found for draft, found in tried.items() if found}
    mix = advisor.loaded.mix
    facts = {way.model: _facts(way.model, advisor) for way in ways if way.model}
    taken = {w.draft: facts[w.model].memory.total if w.model and facts[w.model].memory else 0 for w in ways}  # type: ignore[union-attr]

    judges = _comparable(measured or predicted)
    count = Counter(p.kind for p in next(iter(judges.values())))

    def judged(kind: str) -> list[Judged]:
        found = [w for w in ways if _of(judges.get(w.draft, ()), kind)]
        among = len(found)
        return [Judged(w, taken[w.draft], _speed(judges[w.draft], kind, mix, among)) for w in found]

    chosen, overall = choose(judged(ALL), bool(measured), sum(count.values()))
    if any(p.texts == "mismatch" for p in measured.get(chosen, ())):  # a fault: nobody should be told to use it
        chosen = PLAIN
    verdicts = [verdict(k, judged(k), bool(measured), count[k], chosen) for k in mix if count[k]]
    cells = list(_cells(ways, predicted, measured, mix))
    paths = {"target": resolve(advisor.target)} | {f"draft {name}": resolve(name) for name in facts if name}
    s = advisor.settings
    return Advice(
        target=_facts(advisor.target, advisor, TARGET),
        drafts={name: fact for name, fact in facts.items() if name},
        machine=cpu_model(),
        workload=_workload(advisor, source, count),
        settings=parts.Settings(
            max_tokens=s.max_tokens,
            runs=max((len(advisor.runs(i, [d])) for d in measured for i in advisor.items), default=0),
            seed=s.seed, temperature=s.temperature, threads=s.threads, corpus=list(map(str, s.corpus)),
            what_if=list(prices.notes),
        ),
        candidates=[
            parts.Candidate(
                draft=w.draft, model=w.model, skipped=advisor.skipped.get(w.draft, ""), value=w.value,
                corpus=w.corpus, k=w.k, width=w.width, verify=w.verify,
            ) for w in advisor.ways
        ],
        target_prices=_prices(prices.target),
        draft_prices={name: _prices(prices.drafts[name]) for name in facts if name in prices.drafts},
        cells=cells,
        verdicts=[v.model_copy(update={"reason": reason(v, "en")}) for v in verdicts],
        overall=overall.model_copy(update={"reason": reason(overall, "en")}),
        chosen=chosen,
        accuracy=_accuracy(cells),
        sample=None if redact else _sample(advisor, chosen),
        interrupted=advisor.stopped(),
        reproduce=command,
        provenance=provenance(paths, s.threads),
    )  # fmt: skip


# -- speeds ------------------------------------------------------------------------------------------------------------


def _comparable(found: Mapping[str, Sequence[_Part]]) -> dict[str, list[_Part]]:
    """The ways that were run on most of the prompts, each with the prompts that all of these have: what was stopped
    early is not held against the rest."""
    most = max(len(own) for own in found.values())
    whole = {draft: own for draft, own in found.items() if len(own) >= _MOST * most}
    shared = set.intersection(*({p.key for p in own} for own in whole.values()))
    return {draft: [p for p in own if p.key in shared] for draft, own in whole.items()}


def _predicted(key: str, o: Outcome) -> _Part:
    s = o.stats
    at = s.verified_per_position, s.accepted_per_position
    return _Part(key, o.kind, o.plain_s, o.seconds, s.emitted, s.steps, s.verified, s.accepted, *at)


def _parts(advisor: Advisor, draft: str) -> list[_Part]:
    """Each prompt's rounds together, against plain decoding of the same rounds."""
    every = [(item, advisor.runs(item, [draft])) for item in advisor.items]
    return [_part(item, [(r[PLAIN], r[draft]) for r in rounds]) for item, rounds in every if rounds]


def _part(item: Item, rounds: Sequence[tuple[Run, Run]]) -> _Part:
    plain, own = [p for p, _ in rounds], [o for _, o in rounds]
    tokens = sum(o.tokens for o in own)
    plain_s = sum(p.seconds for p in plain) * tokens / max(sum(p.tokens for p in plain), 1)  # for as many tokens
    texts = min((o.texts for o in own), key=_TEXTS.index)
    return _Part(
        item.key, item.kind, plain_s, sum(o.seconds for o in own), tokens, sum(o.steps for o in own),
        sum(o.verified for o in own), sum(o.accepted for o in own),
        _sums([o.verified_at for o in own]), _sums([o.accepted_at for o in own]),
        (statistics.median(p.first_token_s for p in plain), statistics.median(o.first_token_s for o in own)), texts,
    )  # fmt: skip


def _sums(counts: Sequence[Sequence[float]], weights: Sequence[float] = ()) -> list[float]:
    """By position, over lists that need not be as long."""
    weighted = list(zip(counts, weights or [1.0] * len(counts), strict=True))
    return [sum(w * c[i] for c, w in weighted if i < len(c)) for i in range(max(map(len, counts), default=0))]


def _of(found: Sequence[_Part], kind: str) -> list[_Part]:
    return [p for p in found if kind in (ALL, p.kind)]


def _speed(every: Sequence[_Part], kind: str, mix: Mapping[str, int], among: int) -> Speed:
    """On one kind, or on ALL as they are mixed; `among` so many ways the best is taken."""
    times: dict[str, list[tuple[float, float]]] = {}
    for p in every:
        times.setdefault(p.kind, []).append((p.plain_s, p.seconds))
    ratios = Ratios(times, among)
    speedup = ratios.all(mix) if kind == ALL else ratios.of(kind)
    found = _of(every, kind)
    # Each kind weighs as it does for the user, in every figure.
    weights = [mix.get(p.kind, 0) / len(times[p.kind]) if kind == ALL else 1.0 for p in found]
    if not sum(weights):
        weights = [1.0] * len(found)

    def total(name: str) -> float:
        return sum(w * float(getattr(p, name)) for p, w in zip(found, weights, strict=True))

    plain_s, seconds, tokens, steps = (total(name) for name in ("plain_s", "seconds", "tokens", "steps"))
    verified, accepted = total("verified"), total("accepted")
    one = plain_s / tokens if tokens else 0.0  # seconds of a plain token
    tried, right = _sums([p.verified_at for p in found], weights), _sums([p.accepted_at for p in found], weights)
    first = [(p.first, w) for p, w in zip(found, weights, strict=True) if p.first is not None]
    return Speed(
        speedup=speedup.value,
        interval=speedup.interval,
        plain_tps=tokens / plain_s if plain_s else None,
        tps=tokens / seconds if seconds else None,
        acceptance_rate=accepted / verified if verified else None,
        # Accepted tokens that would have paid for what the steps took beyond plain ones.
        break_even=max(seconds / one - steps, 0.0) / verified if verified and one else None,
        mean_acceptance_length=tokens / steps if steps else None,
        by_position=[(right[i] if i < len(right) else 0) / n for i, n in enumerate(tried) if n],
        plain_first_token_s=_median([(p, w) for (p, _), w in first]),
        first_token_s=_median([(s, w) for (_, s), w in first]),
    )


def _median(weighted: Sequence[tuple[float, float]]) -> float | None:
    """The value below which half of the weight lies."""
    half = sum(w for _, w in weighted) / 2
    for value, w in sorted(weighted):
        half -= w
        if half <= 0:
            return value
    return None


def _cells(
    ways: Sequence[Candidate],
    predicted: Mapping[str, Sequence[_Part]],
    measured: Mapping[str, Sequence[_Part]],
    mix: Mapping[str, int],
) -> Iterable[Cell]:
    """A prediction beside a measurement is one on the same prompts."""
    for way in ways:
        run = {p.key for p in measured.get(way.draft, ())}
        for kind in mix:
            real = _of(measured.get(way.draft, ()), kind)
            paper = [p for p in predicted[way.draft] if p.key in run] if real else predicted[way.draft]
            if not _of(paper, kind):
                continue
            texts = min((p.texts for p in real), default=_TEXTS[-1], key=_TEXTS.index)
            yield Cell(
                draft=way.draft, kind=kind, prompts=len(_of(paper, kind)), predicted=_speed(paper, kind, mix, 1),
                measured=_speed(measured[way.draft], kind, mix, 1) if real else None, texts=texts,
            )  # fmt: skip


def _accuracy(cells: Sequence[Cell]) -> parts.Accuracy | None:
    errors = [abs(c.predicted.speedup / c.measured.speedup - 1) for c in cells if c.measured is not None]
    if not errors:
        return None
    return parts.Accuracy(cells=len(errors), median_error=statistics.median(errors), worst_error=max(errors))


# -- the rest ----------------------------------------------------------------------------------------------------------


def _facts(name: str, advisor: Advisor, known_as: str = "") -> parts.ModelFacts:
    head = read_header(resolve(name))
    file = model_file(head.path)
    plan = memory_plan(Files.find(advisor.target, PLAIN if known_as else name), advisor.options)[0]
    memory = _memory(plan, "target" if known_as else "draft", advisor.evidence.memory.get(known_as or name))
    return parts.ModelFacts(name=name, **file, quantisation=head.quantization, memory=memory)


def _memory(plan: MemoryPlan, role: str, measured: int | None) -> parts.Memory:
    rows = [row.parts for row in plan.rows if row.model == role]
    weights, cache, compute, overhead = (
        sum(getattr(p, n) for p in rows) for n in ("weights", "kv", "compute", "overhead")
    )
    total = weights + cache + compute + overhead
    return parts.Memory(
        weights=weights, cache=cache, compute=compute, overhead=overhead, total=total, measured=measured
    )


def _prices(curve: Curve) -> parts.Prices:
    return parts.Prices.model_validate(curve.as_dict())


def _workload(advisor: Advisor, source: str, used: Mapping[str, int]) -> parts.Workload:
    rules: dict[str, dict[str, int]] = {}
    for work in advisor.loaded.all:
        own = rules.setdefault(work.kind, {})
        own[work.why] = own.get(work.why, 0) + 1
    left_out = [*advisor.loaded.bad, *advisor.left_out]
    return parts.Workload(source=source, mix=dict(advisor.loaded.mix), used=dict(used), rules=rules, left_out=left_out)


def _sample(advisor: Advisor, chosen: str) -> parts.Sample | None:
    """The answer in which most tokens were drafted, its secrets masked."""
    best: tuple[float, parts.Sample] | None = None
    for item in advisor.items:
        for found in advisor.evidence.rounds.get(item.key, [])[:1]:
            run = found.get(chosen)
            if run is None or not run.segments:
                continue
            share = run.accepted / max(run.tokens, 1)
            if best is None or share > best[0]:
                segments = [parts.Segment(text=text, origin=origin) for text, origin in masked(run.segments)]
                best = share, parts.Sample(kind=item.kind, draft=chosen, segments=segments)
    return best[1] if best else None
