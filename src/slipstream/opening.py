"""Opening an engine: everything that can be checked is checked before any weights are loaded."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream import drafters, pricing
from slipstream.core.cost import Curve, Prices
from slipstream.core.policy import Fixed, Off
from slipstream.core.ports import Model, Policy, Want
from slipstream.core.priced import MOST, Priced
from slipstream.core.verify import verifier
from slipstream.drafters.corpus import CorpusDrafter
from slipstream.drafters.corpus_files import Corpus, Encode
from slipstream.drafters.model import Choice as Way
from slipstream.drafters.model import ModelDrafter
from slipstream.drafting import Drafting
from slipstream.errors import CapabilityError, ContextError, InputError, UnknownName
from slipstream.hub import cache_dir, resolve
from slipstream.hub.fetch import Progress
from slipstream.models import layout, memory
from slipstream.models.gguf import GGUFHeader, read_header
from slipstream.models.machine import available_memory
from slipstream.text import pairing, vocab

if TYPE_CHECKING:
    from slipstream.drafting import Draft
    from slipstream.engine import Engine
    from slipstream.models.llamacpp.model import LlamaModel, LlamaOptions

log = logging.getLogger("slipstream")
FIXED_K = 4
MIB = 2**20
POLICIES = ("priced", "fixed", "off")


@dataclass(frozen=True)
class OpenOptions:
    """Settings of Engine.open. `n_ctx` is per slot, 0: the model's own, at most 4096.

    `policy` is "priced" (every step by its measured price), "fixed" (always `k` tokens), "off", or a Policy; left out,
    it is fixed when a `k` is given, else priced.
    """

    k: int | None = None  # the fixed draft length; 0 is plain decoding
    width: int | None = None  # children of a node; 1, the default: chains only
    policy: str | Policy | None = None
    corpus: Sequence[str | Path] = ()  # files, folders or a saved corpus (.npz) to draft from
    save_corpus: str | Path | None = None  # where to keep it; nowhere by itself
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
    cache_ram: int = 0  # MiB for conversations that have lost their slot, so that they need not be read again
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.n_slots < 1:
            raise InputError(f"n_slots is {self.n_slots}", "it must be at least 1")
        if self.cache_ram < 0:
            raise InputError(f"cache_ram is {self.cache_ram} MiB", "it must be 0 or more")
        if self.save_corpus and not self.corpus:
            raise InputError("there is no corpus to save", "name its files with --corpus")
        if isinstance(self.policy, str) and self.policy not in POLICIES:
            raise UnknownName("policy", self.policy, POLICIES)
        if self.k is not None and self.policy not in (None, "fixed"):
            raise InputError("k is the draft length of the fixed policy", "leave out k, or the policy")
        if self.width is not None and self.width < 1:
            raise InputError(f"width is {self.width}", "1 drafts chains, 2 or more trees")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> OpenOptions:
        known = {f.name for f in fields(cls)}
        for name in settings:
            if name not in known:
                raise UnknownName("setting", name, known)
        return cls(**settings)

    def fixed_policy(self, drafting: bool) -> Policy | None:
        """The policy, where it needs no prices; None: priced. Raises InputError for a k that makes no sense."""
        if self.policy is not None and not isinstance(self.policy, str):
            return self.policy
        k = FIXED_K if self.k is None else self.k
        if k < 0 or (k and drafting and (self.policy == "fixed" or self.k is not None)):
            return Fixed(k, self.width or 1)
        return Off() if not drafting or self.policy == "off" or not k else None

    def most(self) -> Want:
        """What the priced policy may ask of a drafter."""
        return replace(MOST, width=self.width or MOST.width)


@dataclass(frozen=True)
class Files:
    """The model files of an engine and what their headers say; nothing is loaded."""

    target: GGUFHeader
    draft: GGUFHeader | None
    pair: pairing.Pairing | None

    @classmethod
    def find(cls, target: str, draft: Draft, progress: Progress | None = None) -> Files:
        """Raises InputError, ModelFileError, PairError, FetchError and the like: all that can be known from headers."""
        model = Drafting.of(draft).model
        head = _header(target, progress)
        if model is None:
            return cls(head, None, None)
        small = _header(model, progress, also=drafters.names())
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
    cls: type[Engine], target: str, draft: Draft, options: OpenOptions | None, settings: Mapping[str, Any]
) -> Engine:
    """See Engine.open."""
    checked = OpenOptions.of(settings)
    o = replace(options, **settings) if options else checked
    drafting = Drafting.of(draft)
    policy = o.fixed_policy(drafting.any or bool(o.corpus))
    verifier(o.verify, (policy.most if policy else o.most()).width)
    if drafting.model and policy and not policy.most.nodes:
        why = "k is 0" if o.k == 0 else "the policy is off"
        log.warning("a draft model is given, but %s: nothing will be drafted", why)
    files = Files.find(target, draft, o.progress)
    o = fit(files, o)
    return _load(cls, files, drafting, policy, o)


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
        own_kernels=library.own_kernels().active,
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


def fit(files: Files, o: OpenOptions) -> OpenOptions:
    """Settle context and GPU layers. Raises MemoryShortage for what does not fit."""
    plan, layers, draft_layers = memory_plan(files, o)
    if o.check_memory:
        memory.require_fits(plan)
    return replace(o, n_ctx=context(files.target, o.n_ctx), gpu_layers=layers, draft_gpu_layers=draft_layers)


def _load(cls: type[Engine], files: Files, drafting: Drafting, policy: Policy | None, o: OpenOptions) -> Engine:
    from slipstream.models.llamacpp.tokenizer import LlamaTokenizer

    model = load_model(files.target, target_options(o))
    owned: list[Model] = []
    try:
        tokenizer = LlamaTokenizer(model.handle)
        made = drafting.create(weighed=policy is None)
        if o.corpus:
            made.append(CorpusDrafter(read_corpus(o.corpus, tokenizer.encode, o.save_corpus)))
        prices = {}
        if files.draft is not None and files.pair is not None:
            if files.pair.note:
                log.info("%s", files.pair.note)
            small = draft_options(o, files.draft, model.caps.n_ctx)
            draft = load_model(files.draft, small)
            owned.append(draft)
            made.append(draft_drafter(draft, files.pair, model, o.verify))
            if policy is None:
                prices[made[-1].name] = Prices(curve_of(draft, files.draft, small, drafts=True))
        policy = policy or Priced(Prices(curve_of(model, files.target, target_options(o))), prices, o.most())
        ram = _spare(o.cache_ram) * MIB
        name = Path(files.target.path).name
        return cls(model, tokenizer, made, policy, o.verify, name=name, owned=owned, cache_ram=ram)
    except BaseException:
        for m in (*owned, model):
            m.close()
        raise


def _spare(asked: int) -> int:
    """MiB for states that are put aside: as asked, but no more than half of what the models left."""
    most = available_memory() // 2 // MIB
    if asked > most:
        log.warning("%d MiB for idle conversations were asked for, and %d are used: memory is short", asked, most)
    return min(asked, most)


def target_options(o: OpenOptions) -> LlamaOptions:
    """How a target is loaded; context and GPU layers are settled."""
    from slipstream.models.llamacpp.model import LlamaOptions

    return LlamaOptions(
        n_ctx=o.n_ctx, n_slots=o.n_slots, threads=o.threads, flash_attn=o.flash_attn,
        kv_type_k=o.kv_type, kv_type_v=o.kv_type, gpu_layers=o.gpu_layers or 0,
    )  # fmt: skip


def draft_options(o: OpenOptions, head: GGUFHeader, n_ctx: int) -> LlamaOptions:
    """How a draft model is loaded beside a target with a context of `n_ctx` tokens a slot."""
    n_ctx, kv = min(n_ctx, head.n_ctx_train), o.draft_kv_type
    return replace(target_options(o), n_ctx=n_ctx, kv_type_k=kv, kv_type_v=kv, gpu_layers=o.draft_gpu_layers or 0)


def draft_drafter(draft: Model, pair: pairing.Pairing, target: Model, verify: str) -> ModelDrafter:
    """A loaded draft model as a drafter that chooses as the verifier needs it."""
    choice: Way = "sampled" if verify in ("rejection", "block") else "keyed"
    return ModelDrafter(draft, choice, pair.n_shared, target.caps.n_vocab)


def load_model(head: GGUFHeader, options: LlamaOptions) -> LlamaModel:
    """Load a model after its build was tried in a child process."""
    from slipstream.models.llamacpp import probe
    from slipstream.models.llamacpp.model import LlamaModel

    probe.ensure(head.path, head.quantization, cache_dir() / "probed-builds.json", options.gpu_layers)
    return LlamaModel(head.path, options)


def curve_of(model: Model, head: GGUFHeader, options: LlamaOptions, fresh: bool = False, drafts: bool = False) -> Curve:
    """The model's price list with these options, as a target or as one that drafts; measured when there is none, or
    when it shall be `fresh`."""
    from slipstream.models.llamacpp import library

    settings = asdict(options) | {"n_ctx": 0, "build": library.build_id(), "drafts": drafts}
    about = {"model": head.path.name, "threads": options.threads, "settings": settings}
    return pricing.price_list(pricing.key(head.path, **settings), model, about, fresh, last_row=drafts)


def read_corpus(paths: Sequence[str | Path], encode: Encode, save: str | Path | None = None) -> Corpus:
    """A saved corpus, or one made of files and folders; kept in `save` if asked.

    Raises InputError for paths that do not exist or mix the two, PairError for a corpus of another vocabulary.
    """
    saved = [p for p in paths if Path(p).suffix == ".npz"]
    if saved and len(paths) > 1:
        raise InputError(f"{saved[0]} is a saved corpus and stands alone", "build one from all the texts instead")
    corpus = Corpus.load(saved[0], encode) if saved else Corpus.build(paths, encode)
    left_out = ", ".join(f"{n} {reason}" for reason, n in corpus.skipped.items() if n)
    log.info(
        "corpus: %d files, %d tokens%s", corpus.files, len(corpus.tokens), f"; left out: {left_out}" * bool(left_out)
    )
    if not corpus.files:
        log.warning("the corpus holds no text%s", f" (left out: {left_out})" if left_out else "")
    if save:
        corpus.save(save)
    return corpus
