"""Options that several commands share, as dataclasses; `grouped` spreads them into a command's own options."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from slipstream.drafting import DEFAULT
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.core.types import SamplingParams
    from slipstream.engine import Engine
    from slipstream.opening import OpenOptions

_MODELS, _DRAFTING, _SAMPLING, _MACHINE = "Models", "Drafting", "Sampling", "Memory and machine"
MODEL_HELP = "Target: a name from `slipstream models`, a GGUF file, or hf:owner/repo/file.gguf."
DRAFT_HELP = (
    "Drafters, joined by commas: suffix, recycle, …, at most one draft model (written as the target is); or none."
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line on stdout.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", metavar="N", help="Most tokens of an answer.")]


@dataclass
class EngineOptions:
    """How an engine is opened."""

    model: Annotated[str, typer.Option("-m", "--model", help=MODEL_HELP, rich_help_panel=_MODELS)]
    draft: Annotated[str, typer.Option("--draft", help=DRAFT_HELP, rich_help_panel=_MODELS)] = DEFAULT
    k: Annotated[
        int | None,
        typer.Option(
            "--k", metavar="N", help="A fixed draft length; 0: plain decoding.", show_default="priced at every step",
            rich_help_panel=_DRAFTING,
        ),
    ] = None  # fmt: skip
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy", help="priced (draft what pays), fixed (always --k), or off.",
            show_default="priced, or fixed with --k", rich_help_panel=_DRAFTING,
        ),
    ] = None  # fmt: skip
    width: Annotated[
        int | None,
        typer.Option(
            "--width", metavar="N", help="1: chains; more: trees.", show_default="1",
            rich_help_panel=_DRAFTING,
        ),
    ] = None  # fmt: skip
    corpus: Annotated[
        list[Path] | None,
        typer.Option(
            "--corpus", metavar="PATH", help="Draft from these files, folders, or a saved corpus (.npz) too.",
            rich_help_panel=_DRAFTING,
        ),
    ] = None  # fmt: skip
    save_corpus: Annotated[
        Path | None,
        typer.Option("--save-corpus", metavar="FILE.npz", help="Keep the corpus here.", rich_help_panel=_DRAFTING),
    ] = None
    verify: Annotated[
        str,
        typer.Option(
            "--verify",
            help="exact (plain's own text), rejection or block (its distribution), typical (lossy).",
            rich_help_panel=_DRAFTING,
        ),
    ] = "exact"
    ctx: Annotated[
        int,
        typer.Option(
            "--ctx", metavar="N", help="Context in tokens; 0: the model's own, 4096 at most.", rich_help_panel=_MACHINE
        ),
    ] = 0
    threads: Annotated[int, typer.Option("--threads", metavar="N", help="0: one a core.", rich_help_panel=_MACHINE)] = 0
    kv_type: Annotated[
        str, typer.Option("--kv-type", help="Cache of the target: f16, q8_0, …", rich_help_panel=_MACHINE)
    ] = "f16"
    draft_kv_type: Annotated[
        str, typer.Option("--draft-kv-type", help="Cache of the draft model.", rich_help_panel=_MACHINE)
    ] = "f16"
    flash_attn: Annotated[
        bool | None,
        typer.Option(
            "--flash-attn/--no-flash-attn",
            help="Fused attention.",
            show_default="where the back end has it",
            rich_help_panel=_MACHINE,
        ),
    ] = None
    gpu_layers: Annotated[
        int | None,
        typer.Option(
            "--gpu-layers", metavar="N", help="-1: all.", show_default="all that fit", rich_help_panel=_MACHINE
        ),
    ] = None  # fmt: skip

    def settings(self, **more: Any) -> OpenOptions:
        """As the engine takes them. Raises what OpenOptions and the list of verifiers do."""
        from slipstream.core.verify import verifier
        from slipstream.opening import OpenOptions

        verifier(self.verify)
        renamed = {"n_ctx": self.ctx, "corpus": tuple(self.corpus or ()), **more}
        same = (
            "k",
            "policy",
            "width",
            "save_corpus",
            "verify",
            "threads",
            "kv_type",
            "draft_kv_type",
            "flash_attn",
            "gpu_layers",
        )
        return OpenOptions(**{name: getattr(self, name) for name in same} | renamed)


@dataclass
class SamplingOptions:
    """How tokens are chosen; the defaults are greedy."""

    temperature: Annotated[
        float, typer.Option("--temperature", help="0 is greedy.", rich_help_panel=_SAMPLING)
    ] = 0.0  # fmt: skip
    top_k: Annotated[int, typer.Option("--top-k", help="0: off.", rich_help_panel=_SAMPLING)] = 0
    top_p: Annotated[float, typer.Option("--top-p", help="1: off.", rich_help_panel=_SAMPLING)] = 1.0
    min_p: Annotated[float, typer.Option("--min-p", help="0: off.", rich_help_panel=_SAMPLING)] = 0.0
    repetition_penalty: Annotated[
        float, typer.Option("--repetition-penalty", help="1: off.", rich_help_panel=_SAMPLING)
    ] = 1.0
    presence_penalty: Annotated[
        float, typer.Option("--presence-penalty", help="0: off.", rich_help_panel=_SAMPLING)
    ] = 0.0
    frequency_penalty: Annotated[
        float, typer.Option("--frequency-penalty", help="0: off.", rich_help_panel=_SAMPLING)
    ] = 0.0
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            "--logit-bias", metavar="ID=BIAS", help="Add to a token's logit; may be repeated.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None  # fmt: skip
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same text.", rich_help_panel=_SAMPLING)] = 0

    def params(self) -> SamplingParams:
        """Raises InputError for a setting out of range."""
        from slipstream.core.types import SamplingParams

        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return SamplingParams(**values | {"logit_bias": dict(map(_bias, self.logit_bias or ()))})


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        pair = int(token), float(bias)
        if pair[0] < 0:
            raise ValueError
        return pair
    except ValueError:
        raise InputError(f"not a logit bias: {text}", "write ID=BIAS, such as --logit-bias 42=-100") from None


def check_bias(engine: Engine, params: SamplingParams) -> None:
    """Raises InputError for a bias of a token that the vocabulary does not have."""
    n_vocab = engine.model.caps.n_vocab
    for token in params.logit_bias:
        if token >= n_vocab:
            raise InputError(f"there is no token {token} to give a logit bias", f"ids go from 0 to {n_vocab - 1}")


def grouped(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose dataclass parameters are spread into one option a field, and put together again for the call."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        kinds = get_type_hints(groups[name], include_extras=True)
        for f in fields(groups[name]):
            default = inspect.Parameter.empty if f.default is MISSING else f.default
            parameters.append(
                inspect.Parameter(f.name, parameter.KEYWORD_ONLY, default=default, annotation=kinds[f.name])
            )

    @wraps(command)
    def spread(**values: Any) -> Any:
        built = {g: cls(**{f.name: values.pop(f.name) for f in fields(cls)}) for g, cls in groups.items()}
        return command(**built, **values)

    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {p.name: p.annotation for p in parameters}
    del spread.__wrapped__
    return spread
