"""Options that several commands share, as dataclasses; `grouped` spreads them into a command's own options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Set
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from slipstream.drafting import DEFAULT
from slipstream.errors import InputError

if TYPE_CHECKING:
    from slipstream.advise.plan import Plan
    from slipstream.core.types import SamplingParams
    from slipstream.engine import Engine
    from slipstream.opening import OpenOptions

_MODELS, _DRAFTING, _SAMPLING, _MACHINE = "Models", "Drafting", "Sampling", "Memory and machine"
MODEL_HELP = "Target: a name from `slipstream models`, a GGUF file, or hf:owner/repo/file.gguf."
DRAFT_HELP = (
    "Drafters, joined by commas: suffix, recycle, …, at most one draft model (written as the target is); or none."
)
_OR_PLAN = MODEL_HELP + " May be left out with --plan."
PLAN_HELP = "What `slipstream advise` decided: model, drafters, verifier, threads. Options beside it win."

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line on stdout.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", metavar="N", help="Most tokens of an answer.")]


@dataclass
class EngineOptions:
    """How an engine is opened."""

    model: Annotated[str, typer.Option("-m", "--model", help=_OR_PLAN, show_default=False, rich_help_panel=_MODELS)] = (
        ""
    )
    draft: Annotated[str, typer.Option("--draft", help=DRAFT_HELP, rich_help_panel=_MODELS)] = DEFAULT
    plan: Annotated[
        str | None, typer.Option("--plan", metavar="FILE", help=PLAN_HELP, show_default=False, rich_help_panel=_MODELS)
    ] = None
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

    def complete(self, given: Set[str]) -> None:
        """Take from the plan what the command line left open; `given`: the options that it names.

        Raises InputError when neither names a model, and what `plan.read` does.
        """
        if self.plan is not None:
            from slipstream.advise import plan

            path = Path(self.plan)
            found = plan.read(path)
            for name, value in found.options().items():
                if name not in given:
                    setattr(self, name, value)
            _announce(found, path, self.model, self.draft)
        if not self.model:
            raise InputError("no model is named", "give -m MODEL, or --plan FILE as `slipstream advise` makes it")

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


def _announce(plan: Plan, path: Path, model: str, draft: str) -> None:
    """Lines on stderr: that the plan means plain decoding, and why it may not fit the files that are here now."""
    from slipstream.cli.common import say

    if plan.predicted:
        why = "; ".join(plan.made.what_if) or "nothing was run"
        say(f"warning: {path.name} rests on predictions, not on measurements: {why}")
    if plan.off and draft == "none":
        say(f"{path.name}: drafting does not pay here (verdict: {plan.decision}), so decoding is plain")
    files = [(plan.target, model)]
    if plan.draft_model is not None and draft == plan.draft:
        files.append((plan.draft_model, plan.draft_model.model))
    for file, ref in files:
        if doubt := file.doubt(ref):
            say(f"warning: {path.name}: {doubt}; its verdict may not hold: `slipstream advise` makes a new one")


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
    """A command whose dataclass parameters are spread into one option a field, and put together again for the call.

    A dataclass with a method `complete` hears from it which options the command line named.
    """
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

    parameters.append(inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context))

    @wraps(command)
    def spread(context: typer.Context, **values: Any) -> Any:
        given = {name for name in values if _is_given(context, name)}
        built = {g: cls(**{f.name: values.pop(f.name) for f in fields(cls)}) for g, cls in groups.items()}
        for group in built.values():
            if hasattr(group, "complete"):
                group.complete(given)
        return command(**built, **values)

    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spread.__annotations__ = {p.name: p.annotation for p in parameters}
    del spread.__wrapped__
    return spread


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"
