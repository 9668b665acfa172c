"""Opening an engine: everything that can be checked is checked before any weights are loaded."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream import drafters
from slipstream.core.policy import Fixed, Off
from slipstream.core.ports import Drafter, Policy
from slipstream.core.verify import verifier
from slipstream.drafters.model import ModelDrafter
from slipstream.errors import CapabilityError, ContextError, InputError, UnknownName
from slipstream.hub import cache_dir, resolve
from slipstream.hub.fetch import Progress
from slipstream.models import layout, memory
from slipstream.models.gguf import GGUFHeader, read_header
from slipstream.text import pairing, vocab

if TYPE_CHECKING:
    from slipstream.engine import Engine

log = logging.getLogger("slipstream")
DEFAULT_K = {"model": 4}
DEFAULT_K_OTHER = 8


@dataclass(frozen=True)
class OpenOptions:
    """Settings of Engine.open. `n_ctx` is per slot, 0: the model's own, at most 4096. `k` is the draft length."""

    k: int | None = None  # None: 4 for a draft model, 8 for drafters that cost nothing; 0 is plain decoding
    width: int = 1  # children of a node; above 1 the draft is a tree
    policy: Policy | None = None  # instead of k and width
    verify: str = "exact"
    n_ctx: int = 0
    n_slots: int = 1
    threads: int = 0
    kv_type: str = "f16"
    draft_kv_type: str = "f16"
    flash_attn: bool | None = None
    gpu_layers: int | None = None  # None: all that fit
    draft_gpu_layers: int | None = None
    check_memory: bool = True
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.n_slots < 1:
            raise InputError(f"n_slots is {self.n_slots}", "it must be at least 1")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> OpenOptions:
        known = {f.name for f in fields(cls)}
        for name in settings:
            if name not in known:
                raise UnknownName("setting", name, known)
        return cls(**settings)

    def make_policy(self, drafter_name: str | None) -> Policy:
        """Raises InputError for a k or width that makes no sense."""
        k = DEFAULT_K.get(drafter_name or "", DEFAULT_K_OTHER) if self.k is None else self.k
        return self.policy or (Fixed(k, self.width) if drafter_name and k else Fixed(k) if k < 0 else Off())


def draft_kind(draft: str | Drafter | None) -> str | None:
    """What `draft` names: None, "drafter" (needs no model), or "model"."""
    if draft is None or draft == "none":
        return None
    return "drafter" if not isinstance(draft, str) or draft in drafters.names() else "model"


@dataclass(frozen=True)
class Files:
    """The model files of an engine and what their headers say; nothing is loaded."""

    target: GGUFHeader
    draft: GGUFHeader | None
    pair: pairing.Pairing | None

    @classmethod
    def find(cls, target: str, draft: str | Drafter | None, progress: Progress | None = None) -> Files:
        """Raises InputError, ModelFileError, PairError, FetchError and the like: all that can be known from headers."""
        head = _header(target, progress)
        if draft_kind(draft) != "model":
            return cls(head, None, None)
        small = _header(str(draft), progress, also=drafters.names())
        if small.is_recurrent or small.is_hybrid:
            raise CapabilityError(
                f"{small.path.name} is a {'recurrent' if small.is_recurrent else 'hybrid'} model: as a draft model it "
                "would have to read the whole text again after every rejected guess",
                "use a draft model with attention only, or --draft suffix",
            )
        return cls(head, small, pairing.pair(vocab.from_gguf(head), vocab.from_gguf(small)))


def _header(ref: str, progress: Progress | None, also: list[str] | None = None) -> GGUFHeader:
    try:
        return read_header(resolve(ref, progress=progress))
    except UnknownName as e:
        if also:
            e.hint += f" (drafters without a model: {', '.join(also)}, none)"
        raise


def open_engine(
    cls: type[Engine],
    target: str,
    draft: str | Drafter | None,
    options: OpenOptions | None,
    settings: Mapping[str, Any],
) -> Engine:
    """See Engine.open."""
    checked = OpenOptions.of(settings)
    o = replace(options, **settings) if options else checked
    kind = draft_kind(draft)
    name = {None: None, "model": "model"}.get(
        kind, draft if isinstance(draft, str) else getattr(draft, "name", "draft")
    )
    policy = o.make_policy(name)
    verifier(o.verify, policy.most.width)
    if kind == "model" and not policy.most.nodes:
        log.warning("a draft model is given, but k is 0: nothing will be drafted")
    files = Files.find(target, draft, o.progress)
    o = _fit(files, o)
    return _load(cls, files, draft, kind, policy, o)


def memory_plan(files: Files, o: OpenOptions) -> tuple[memory.MemoryPlan, int, int]:
    """What the models would take, and the GPU layers of target and draft: as asked, or all that fit."""
    from slipstream.models.llamacpp import library

    gpus = library.gpus()
    n_ctx = context(files.target, o.n_ctx)
    base = memory.Settings(
        n_ctx,
        o.n_slots,
        flash_attn=o.flash_attn is not False,
        n_outputs=layout.rows(o.n_slots, 512),
        extra_seqs=o.n_slots * (layout.leaves(o.n_slots) - 1),
        n_threads=o.threads,
    )
    draft_ctx = n_ctx if files.draft is None else min(n_ctx, files.draft.n_ctx_train)

    def plan(layers: int, draft_layers: int, advise: bool = True) -> memory.MemoryPlan:
        target = replace(base, kv_type_k=o.kv_type, kv_type_v=o.kv_type, gpu_layers=layers)
        kv = o.draft_kv_type
        draft = replace(base, n_ctx=draft_ctx, kv_type_k=kv, kv_type_v=kv, gpu_layers=draft_layers)
        return memory.plan(files.target, files.draft, target, draft, gpus, advise=advise)

    if not gpus:
        if o.gpu_layers or o.draft_gpu_layers:
            log.warning("this build of llama.cpp has no GPU back end: everything runs on the CPU")
        return plan(0, 0), 0, 0
    ways = [o.gpu_layers] if o.gpu_layers is not None else range(files.target.n_layers + 1, -1, -1)
    for draft_layers in [-1, 0] if o.draft_gpu_layers is None else [o.draft_gpu_layers]:
        for layers in ways:
            if not set(plan(layers, draft_layers, advise=False).short) - {memory.RAM}:
                return plan(layers, draft_layers), layers, draft_layers
    return plan(layers, draft_layers), layers, draft_layers


def context(head: GGUFHeader, asked: int) -> int:
    """Tokens of context for a slot: as asked, or the model's own but 4096 at most.

    Raises ContextError when more is asked than the model was trained with.
    """
    if asked < 0:
        raise InputError(f"the context is {asked} tokens", "give 1 or more, or 0 for the model's own")
    if asked > head.n_ctx_train:
        raise ContextError(
            f"a context of {asked} tokens was asked for, but {head.path.name} was trained with {head.n_ctx_train}",
            f"use --ctx {head.n_ctx_train} or less",
        )
    return asked or min(head.n_ctx_train, 4096)


def _fit(files: Files, o: OpenOptions) -> OpenOptions:
    """Settle context and GPU layers, and refuse what does not fit."""
    plan, layers, draft_layers = memory_plan(files, o)
    if o.check_memory:
        memory.require_fits(plan)
    return replace(o, n_ctx=context(files.target, o.n_ctx), gpu_layers=layers, draft_gpu_layers=draft_layers)


def _load(
    cls: type[Engine], files: Files, draft: str | Drafter | None, kind: str | None, policy: Policy, o: OpenOptions
) -> Engine:
    from slipstream.models.llamacpp import probe
    from slipstream.models.llamacpp.model import LlamaModel, LlamaOptions
    from slipstream.models.llamacpp.tokenizer import LlamaTokenizer

    common = LlamaOptions(n_ctx=o.n_ctx, n_slots=o.n_slots, threads=o.threads, flash_attn=o.flash_attn)
    probed = cache_dir() / "probed-builds.json"

    def load(head: GGUFHeader, kv: str, layers: int | None) -> LlamaModel:
        probe.ensure(head.path, head.quantization, probed, layers or 0)
        return LlamaModel(head.path, replace(common, kv_type_k=kv, kv_type_v=kv, gpu_layers=layers or 0))

    model = load(files.target, o.kv_type, o.gpu_layers)
    owned = []
    try:
        tokenizer = LlamaTokenizer(model.handle)
        drafter: Drafter | None = None
        if kind == "model" and files.draft is not None and files.pair is not None:
            if files.pair.note:
                log.info("%s", files.pair.note)
            common = replace(common, n_ctx=min(model.caps.n_ctx, files.draft.n_ctx_train))
            small = load(files.draft, o.draft_kv_type, o.draft_gpu_layers)
            owned.append(small)
            drafter = ModelDrafter(
                small,
                "sampled" if o.verify in ("rejection", "block") else "keyed",
                files.pair.n_shared,
                model.caps.n_vocab,
            )
        elif kind == "drafter":
            drafter = drafters.create(draft) if isinstance(draft, str) else draft
        return cls(model, tokenizer, drafter, policy, o.verify, name=Path(files.target.path).name, owned=owned)
    except BaseException:
        for m in (*owned, model):
            m.close()
        raise
