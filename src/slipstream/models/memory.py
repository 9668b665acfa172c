"""How much memory a target and its draft model will take, worked out from their headers before anything is loaded.

The sizes follow llama.cpp as llama-cpp-python 0.3.36 holds it; each rule names the function it comes from. They are an
upper bound of what is resident once a full batch and `n_outputs` wanted rows have been decoded; benchmarks/memory.py
compares them with measurements.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate

from slipstream.errors import InputError, MemoryShortage, UnknownName
from slipstream.models import layout
from slipstream.models.gguf import GGUFHeader, Tensor
from slipstream.models.gguf_tables import GGML_TYPES
from slipstream.models.machine import available_memory, cpu_flags, usable_cores

RAM = "RAM"
CACHE_TYPES = {t.name.lower(): t for t in GGML_TYPES.values() if t.name in (
    "F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "IQ4_NL")}  # fmt: skip
# llama_vocab on a 64-bit libstdc++. A token: hash node 64, bucket 16, record 40, piece 32, long strings. A merge: node
# of two strings 96, bucket 16, and about 48 that the allocator keeps of the parsed text. Measured: 150 to 158 each.
TOKEN_BYTES = MERGE_BYTES = 160
# Bits a weight of whole files: table for Llama 3.1 8B in llama.cpp's tools/quantize/README.md.
FILE_BITS = {"Q8_0": 8.50, "Q6_K": 6.56, "Q5_K_M": 5.70, "Q4_K_M": 4.89, "Q3_K_M": 4.00, "Q2_K": 3.16}
_AMX_EXTRA = {"Q8_0": 4, "Q4_K": 4, "Q5_K": 4, "IQ4_XS": 2}  # bytes a block: amx/mmq.cpp, get_row_size
_INPUT = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")


@dataclass(frozen=True)
class Settings:
    """How a model is opened. `n_ctx` is the context of one slot; `gpu_layers` -1 means all of them.

    `extra_seqs` counts the sequence ids used for branches of draft trees. `mmap` maps the file instead of reading it.
    """

    n_ctx: int
    n_slots: int = 1
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    n_batch: int = 512
    flash_attn: bool = True
    gpu_layers: int = 0
    extra_seqs: int = 0
    n_outputs: int = 64
    n_threads: int = 0
    own_kernels: bool = False  # see models/llamacpp/kernels.py
    mmap: bool = False  # for comparison: this project reads files instead

    def __post_init__(self) -> None:
        for name in ("n_ctx", "n_slots", "n_batch", "n_outputs"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}", "it must be at least 1")
        for kind in (self.kv_type_k, self.kv_type_v):
            if kind not in CACHE_TYPES:
                raise UnknownName("cache type", kind, CACHE_TYPES)
        if CACHE_TYPES[self.kv_type_v].block > 1 and not self.flash_attn:
            raise InputError(f"a value cache of type {self.kv_type_v} needs flash attention", "turn it on, or use f16")

    @property
    def cells(self) -> int:
        """Cache cells of all slots together (one unified cache)."""
        return layout.cells(self.n_ctx, self.n_slots)

    @property
    def n_seqs(self) -> int:
        return self.n_slots + self.extra_seqs


@dataclass(frozen=True)
class Parts:
    """Bytes on one device. `compute` holds scratch space and logits, `overhead` vocabulary and bookkeeping."""

    weights: int = 0
    kv: int = 0
    compute: int = 0
    overhead: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.compute + self.overhead

    def __add__(self, other: Parts) -> Parts:
        return Parts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Parts)))


@dataclass(frozen=True)
class MemoryEstimate:
    """What one model takes on each device that it uses, RAM always among them."""

    per_device: dict[str, Parts]

    @property
    def all(self) -> Parts:
        return sum(self.per_device.values(), Parts())


def _up(n: int, step: int) -> int:
    return -(-n // step) * step


def _packed(t: Tensor, flags: frozenset[str], own_kernels: bool) -> int:
    """Bytes of `t` in the buffer of repacked weights, 0 if llama.cpp leaves it as it is in the file.

    From repack.cpp (ggml_repack_get_optimal_repack_type), amx/amx.cpp, which comes first where the CPU has AMX, and our
    own kernels, which have Q6_K repacked too.
    """
    name, rows = t.type.name, t.shape[1] if len(t.shape) > 1 else 0
    if rows == 0:
        return 0
    amx = "amx_int8" in flags and "avx512_vnni" in flags and len(t.shape) == 2 and rows % 32 == 0
    if amx and name in ("F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS"):
        return t.nbytes + t.nbytes // t.type.size * _AMX_EXTRA.get(name, 0)
    x86 = {"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"} if "avx2" in flags else set()
    x86 |= {"Q2_K"} if "avx512f" in flags else set()
    x86 |= {"Q6_K"} if own_kernels and len(t.shape) == 2 else set()
    arm = {"Q4_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "Q8_0"} if "asimddp" in flags else set()
    return t.nbytes if (name in x86 and rows % 8 == 0) or (name in arm and rows % 4 == 0) else 0


def _placement(header: GGUFHeader, gpu_layers: int, gpus: Sequence[tuple[str, int]]) -> list[str]:
    """Device of every layer, the output last (llama-model.cpp, load_tensors: shares follow free memory)."""
    slots = header.n_layers + 1
    on_gpu = slots if gpu_layers < 0 else min(gpu_layers, slots)
    free = sum(size for _, size in gpus)
    if not free or not on_gpu:
        return [RAM] * slots
    shares = [total / free for total in accumulate(size for _, size in gpus)]
    chosen = (gpus[min(bisect_right(shares, i / on_gpu), len(gpus) - 1)][0] for i in range(on_gpu))
    return [RAM] * (slots - on_gpu) + list(chosen)


def _weights(header: GGUFHeader, s: Settings, places: list[str], flags: frozenset[str]) -> Iterator[tuple[str, int]]:
    tied = all(t.name != "output.weight" for t in header.tensors)
    for t in header.tensors:
        is_input = t.name.startswith(_INPUT)
        device = RAM if is_input else places[-1 if t.layer is None else min(t.layer, len(places) - 1)]
        packed = 0 if is_input else _packed(t, flags, s.own_kernels)
        if device != RAM:
            yield device, t.nbytes
        else:  # a mapped file stays resident beside the repacked copies
            yield RAM, t.nbytes + packed if s.mmap else packed or t.nbytes
        if tied and t.name == "token_embd.weight":
            # The same rows again as output matrix, unless both uses find them in the same buffer.
            yield places[-1], t.nbytes if places[-1] != RAM else _packed(t, flags, s.own_kernels)


def _kv(header: GGUFHeader, s: Settings, places: list[str]) -> Iterator[tuple[str, int]]:
    """llama-kv-cache.cpp (every layer full size: swa_full) and llama-memory-recurrent.cpp."""
    k, v = CACHE_TYPES[s.kv_type_k], CACHE_TYPES[s.kv_type_v]
    n, architecture = header.n_layers, header.architecture
    # Later layers of Gemma 3n and 4 use the cache of earlier ones.
    cached = 20 if architecture == "gemma3n" else n - header.count("{arch}.attention.shared_kv_layers", 0)
    heads, windowed, recurrent = header.n_head_kv, header.sliding_window_pattern, header.recurrent_layers
    state = _state_bytes(header) * s.n_seqs if any(recurrent) else 0
    dims = {w: (header.head_dim("key", w), 0 if header.is_mla else header.head_dim("value", w)) for w in set(windowed)}
    for i in range(n):
        if recurrent[i]:
            yield places[i], state
        if i < cached and (not recurrent[i] or architecture == "falcon-h1"):
            dim_k, dim_v = dims[windowed[i]]
            width_k, width_v = _up(dim_k * heads[i], k.block), _up(dim_v * heads[i], v.block)
            yield places[i], s.cells * (k.nbytes((width_k,)) + v.nbytes((width_v,)))


def _state_bytes(header: GGUFHeader) -> int:
    """One sequence's state in one recurrent layer (llama-hparams.cpp, n_embd_r and n_embd_s)."""
    n_embd, wkv = header.n_embd, header.count("{arch}.wkv.head_size", 0)
    short, kda = header.count("{arch}.shortconv.l_cache", 0), header.count("{arch}.kda.head_dim", 0)
    conv = max(header.count("{arch}.ssm.conv_kernel", 0) - 1, 0)
    if wkv:
        return 4 * n_embd * (header.count("{arch}.token_shift_count", 2) + wkv)
    if short:
        return 4 * n_embd * (short - 1)
    if kda:
        return 4 * max(header.n_head) * kda * (3 * (conv or 3) + kda)
    inner, state = header.count("{arch}.ssm.inner_size", 0), header.count("{arch}.ssm.state_size", 0)
    return 4 * (conv * (inner + 2 * header.count("{arch}.ssm.group_count", 0) * state) + state * inner)


def _scratch(header: GGUFHeader, s: Settings) -> int:
    """The buffer for one batch's intermediate results, all in 32 bits except the mask of flash attention.

    Largest of: feed-forward (up, gate, product and four rows of the model's width), attention without flash (all
    scores), output. At the output the scheduler may keep four rows more. Within 5 MiB of
    what llama.cpp reports for the benchmark's four models at 64 rows.
    """
    n = min(s.n_batch, s.cells)
    width = 4 * n * header.n_embd
    masks = (2 if header.sliding_window else 1) * n * s.cells * (2 if s.flash_attn else 4)
    experts = header.count("{arch}.expert_used_count", 0)
    ff = 3 * max(header.per_layer("{arch}.feed_forward_length", 0))
    if experts:
        ff = max(ff, experts * (3 * header.count("{arch}.expert_feed_forward_length", ff // 3) + header.n_embd))
    heads = max(header.n_head, default=0)
    rows = max(width, 4 * n * heads * header.head_dim("key"))
    scores = 0 if s.flash_attn else 4 * n * s.cells * heads + 6 * rows
    feed_forward = 4 * n * ff + 4 * width
    return max(masks + scores, masks + feed_forward, 4 * min(n, s.n_outputs) * header.n_vocab + 4 * width)


def _host(header: GGUFHeader, s: Settings) -> Parts:
    """What is in RAM wherever the layers are: logits, the CPU's work space, vocabulary, cache bookkeeping."""
    n, threads = min(s.n_batch, s.cells), s.n_threads or usable_cores()
    # llama-context.cpp, output_reserve; ggml_graph_plan: the widest input as q8_K, and flash attention's tiles.
    logits = 4 * max(s.n_outputs, s.n_seqs) * header.n_vocab
    widest = max(header.n_embd, *header.per_layer("{arch}.feed_forward_length", 0))
    key = header.head_dim("key")
    work = n * widest * 292 // 256 + 4 * threads * 64 * (4 * key + 128)
    # llama-kv-cells.h: 52 bytes a cell, a set node of 48 when used and one more for every sequence that it is in.
    cells = s.cells * (100 + 48 * (1 + s.extra_seqs)) * (2 if header.sliding_window else 1)
    merges = len(header.metadata.get("tokenizer.ggml.merges", ()))
    return Parts(compute=logits + work, overhead=header.n_vocab * TOKEN_BYTES + merges * MERGE_BYTES + cells)


def estimate(
    header: GGUFHeader,
    settings: Settings,
    gpus: Sequence[tuple[str, int]] = (),
    flags: frozenset[str] | None = None,
) -> MemoryEstimate:
    """Bytes that the model will take, by device. `gpus` lists (name, free bytes); `flags` default to this CPU's.

    Raises ModelFileError where the header lacks something.
    """
    places = _placement(header, settings.gpu_layers, gpus)
    found: dict[str, Parts] = {RAM: _host(header, settings)}

    def add(device: str, parts: Parts) -> None:
        found[device] = found.get(device, Parts()) + parts

    for device, size in _weights(header, settings, places, cpu_flags() if flags is None else flags):
        add(device, Parts(weights=size))
    for device, size in _kv(header, settings, places):
        add(device, Parts(kv=size))
    for device in dict.fromkeys(places):
        add(device, Parts(compute=_scratch(header, settings)))
    return MemoryEstimate(found)


@dataclass(frozen=True)
class Row:
    """One line of the table: what a model ("target" or "draft") takes on one device."""

    model: str
    device: str
    parts: Parts


@dataclass(frozen=True)
class MemoryPlan:
    """Needs beside what there is, in bytes by device; `advice` says what would make it fit, best first."""

    rows: tuple[Row, ...]
    available: dict[str, int]
    advice: list[str] = field(default_factory=list)

    @property
    def needed(self) -> dict[str, int]:
        out = dict.fromkeys(self.available, 0)
        for row in self.rows:
            out[row.device] = out.get(row.device, 0) + row.parts.total
        return out

    @property
    def short(self) -> dict[str, int]:
        """Bytes missing, by device; empty when everything fits."""
        return {d: n - self.available[d] for d, n in self.needed.items() if n > self.available[d]}

    @property
    def fits(self) -> bool:
        return not self.short


@dataclass(frozen=True)
class _Case:
    """Everything a plan depends on, so that advice can try it with something changed."""

    target: GGUFHeader
    draft: GGUFHeader | None
    settings: Settings
    draft_settings: Settings
    gpus: tuple[tuple[str, int], ...]
    available: dict[str, int]

    def plan(self) -> MemoryPlan:
        models = [("target", self.target, self.settings)]
        if self.draft is not None:
            models.append(("draft", self.draft, self.draft_settings))
        rows = [
            Row(name, device, parts)
            for name, header, settings in models
            for device, parts in estimate(header, settings, self.gpus).per_device.items()
        ]
        return MemoryPlan(tuple(rows), self.available)

    def with_both(self, **changes: object) -> _Case:
        """The case with both models' settings changed."""
        return replace(
            self,
            settings=replace(self.settings, **changes),  # type: ignore[arg-type]
            draft_settings=replace(self.draft_settings, **changes),  # type: ignore[arg-type]
        )


def plan(
    target: GGUFHeader,
    draft: GGUFHeader | None,
    settings: Settings,
    draft_settings: Settings | None = None,
    gpus: Sequence[tuple[str, int]] = (),
    available: int | None = None,
    advise: bool = True,
) -> MemoryPlan:
    """What target and draft model need, beside what there is. `available` is free RAM in bytes (else measured).

    Advice tries many cases: a search over plans is quicker without.
    """
    room = {RAM: available_memory() if available is None else available} | dict(gpus)
    case = _Case(target, draft, settings, draft_settings or settings, tuple(gpus), room)
    result = case.plan()
    return result if result.fits or not advise else replace(result, advice=list(_advice(case, result)))


def require_fits(result: MemoryPlan) -> None:
    """Raises MemoryShortage, with the advice as its hint, unless everything fits."""
    if result.fits:
        return
    lacks = ", ".join(
        f"{device}: {human(result.needed[device])} needed, {human(result.available[device])} free"
        for device in result.short
    )
    raise MemoryShortage(f"the models do not fit in memory ({lacks})", "; or ".join(result.advice))


def human(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _largest(candidates: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """The largest that fits, if any. Candidates rise, and where one fits all before it do."""
    n = bisect_right(candidates, False, key=lambda c: not fits(c))
    return candidates[n - 1] if n else None


def _advice(case: _Case, now: MemoryPlan) -> Iterator[str]:
    needed, s = sum(now.needed.values()), case.settings

    def saves(other: _Case) -> str:
        result = other.plan()
        gain = f"saves {human(needed - sum(result.needed.values()))}"
        return gain if result.fits else f"{gain}, not enough alone"

    if set(now.short) - {RAM}:  # from the top: with RAM short as well, fewer layers are not always better
        layers = range(case.target.n_layers, -1, -1)
        gpu = next((n for n in layers if case.with_both(gpu_layers=n).plan().fits), None)
        if gpu is not None:
            yield f"put {gpu} layers on the GPU" if gpu else "put no layers on the GPU"
    n_ctx = _largest(range(256, s.n_ctx, 256), lambda n: case.with_both(n_ctx=n).plan().fits)
    if n_ctx is not None:
        yield f"use a context of {n_ctx} instead of {s.n_ctx} tokens ({saves(case.with_both(n_ctx=n_ctx))})"
    n_slots = _largest(range(1, s.n_slots), lambda n: case.with_both(n_slots=n).plan().fits)
    if n_slots is not None:
        yield f"use {n_slots} instead of {s.n_slots} slots ({saves(case.with_both(n_slots=n_slots))})"
    if CACHE_TYPES[s.kv_type_k].block == 1 and s.flash_attn:
        yield f"store the cache as q8_0 ({saves(case.with_both(kv_type_k='q8_0', kv_type_v='q8_0'))})"
    if case.draft is not None:
        yield f"use a drafter that needs no model ({saves(replace(case, draft=None))})"
    yield from _smaller_file(case, now)


def _smaller_file(case: _Case, now: MemoryPlan) -> Iterator[str]:
    """The least reduced quantisation of the target that would fit."""
    missing = sum(now.short.values())
    weights = sum(row.parts.weights for row in now.rows if row.model == "target")
    bits = 8 * sum(t.nbytes for t in case.target.tensors) / max(sum(_n(t) for t in case.target.tensors), 1)
    for name, per_weight in FILE_BITS.items():
        saved = int(weights * (1 - per_weight / bits)) if bits else 0
        if saved >= missing:
            yield f"use a {name} file of the target instead of {case.target.quantization} (saves about {human(saved)})"
            return


def _n(t: Tensor) -> int:
    return t.nbytes // t.type.size * t.type.block
