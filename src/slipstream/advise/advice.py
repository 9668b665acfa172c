"""What an advice holds, and its JSON file: report, plan and export are made from this alone.

Speeds are tokens per second of decoding, prompt reading left out; sizes are bytes; times are seconds; rates and
intervals (95 %) are shares from 0 to 1, or ratios to plain decoding. Texts of the workload are in `sample` only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipstream.errors import InputError

FORMAT = 1
Decision = Literal["on", "not worth it", "off", "too few prompts"]
Texts = Literal["identical", "near tie", "mismatch", "not compared"]
ALL = "all"  # the kind of the verdict on the whole workload


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Memory(_Part):
    """Of one model, as counted before loading; `measured` is what the process grew by when it was loaded and used."""

    weights: int
    cache: int
    compute: int
    overhead: int
    total: int
    measured: int | None = None


class ModelFacts(_Part):
    """`name` is what the user wrote: a catalogue name, a path or hf:…; `file` is the file's name alone."""

    name: str
    file: str
    size: int
    sha256: str
    quantisation: str
    memory: Memory | None = None


class Candidate(_Part):
    """A way to draft, called `draft`: what --draft takes is `value`, the draft model in it `model`; `k` is a fixed
    draft length (None: priced); `corpus`: the user's texts too. `skipped` says why it was left out."""

    draft: str
    model: str | None = None
    skipped: str = ""
    value: str = ""
    corpus: bool = False
    k: int | None = None
    width: int = 1
    verify: str = "exact"


class Prices(_Part):
    """T(n): seconds of a forward of `sizes[i]` tokens behind `context` tokens, and what further context adds."""

    sizes: list[int]
    seconds: list[float]
    context: int
    per_past: float
    per_past_token: float
    spread: float = 1.0


class Speed(_Part):
    """Drafting beside plain decoding. `break_even` is the acceptance rate at which these drafts would have earned what
    they cost; `by_position[i]` is the share accepted of the tokens that were drafted at depth i + 1."""

    speedup: float
    interval: tuple[float, float] | None = None
    plain_tps: float | None = None
    tps: float | None = None
    acceptance_rate: float | None = None
    break_even: float | None = None
    mean_acceptance_length: float | None = None
    by_position: list[float] = Field(default_factory=list)
    plain_first_token_s: float | None = None
    first_token_s: float | None = None


class Cell(_Part):
    """One way to draft on one kind of work. `texts`: was the text plain decoding's? Near-ties: see docs/ties.md."""

    draft: str
    kind: str
    prompts: int
    predicted: Speed
    measured: Speed | None = None
    texts: Texts = "not compared"


class Verdict(_Part):
    """On one kind of work, or on all of it (`kind` ALL, by the user's own mix). `measured`: `speed` was not predicted.

    `reason` is a sentence in English; wording.py says it in other languages.
    """

    kind: str
    decision: Decision
    draft: str
    speed: Speed
    measured: bool
    prompts: int
    reason: str = ""


class Workload(_Part):
    """`mix` counts all prompts of each kind, `used` those that were run; `rules` says what put them there."""

    source: str
    mix: dict[str, int]
    used: dict[str, int]
    rules: dict[str, dict[str, int]] = Field(default_factory=dict)  # kind -> reason -> prompts
    left_out: list[tuple[str, str]] = Field(default_factory=list)  # where, why


class Settings(_Part):
    """How answers were written and measured. `what_if` holds changes to the measured prices: then all is predicted."""

    max_tokens: int
    runs: int
    seed: int
    temperature: float = 0.0
    threads: int = 0
    corpus: list[str] = Field(default_factory=list)  # paths of texts to draft from, as they were given
    what_if: list[str] = Field(default_factory=list)


class Segment(_Part):
    """Text and who said it: a drafter's name, or "target"."""

    text: str
    origin: str


class Sample(_Part):
    """An answer with the origin of its tokens; secrets are masked. Absent from an advice that was redacted."""

    kind: str
    draft: str
    segments: list[Segment]


class Accuracy(_Part):
    """Predicted beside measured speed-ups: number of (draft, kind) cells, and |predicted / measured - 1|."""

    cells: int
    median_error: float
    worst_error: float


class Advice(_Part):
    """`chosen` is the way to draft that the plan takes ("none": plain decoding); `overall` is the verdict on it."""

    format: Literal[1] = 1
    target: ModelFacts
    drafts: dict[str, ModelFacts]  # draft models by the name that the user wrote
    machine: str  # the CPU's name for itself
    workload: Workload
    settings: Settings
    candidates: list[Candidate]
    target_prices: Prices
    draft_prices: dict[str, Prices]
    cells: list[Cell]
    verdicts: list[Verdict]
    overall: Verdict
    chosen: str
    accuracy: Accuracy | None = None
    sample: Sample | None = None
    interrupted: bool = False
    reproduce: str  # the command; its files were named as the user named them
    provenance: dict[str, Any]

    def cell(self, draft: str, kind: str) -> Cell | None:
        return next((c for c in self.cells if (c.draft, c.kind) == (draft, kind)), None)


def read(path: Path) -> Advice:
    """Raises InputError for a file that cannot be read or is no advice, naming the first thing that is wrong."""
    hint = "make one with `slipstream advise --out advice.json`"
    try:
        return Advice.model_validate_json(path.read_bytes())
    except OSError as e:
        raise InputError(f"cannot read {path}: {e.strerror}", hint) from e
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{path} is not an advice: {where + ': ' if where else ''}{first['msg']}", hint) from e
