"""A GGUF model as a `Model`: several slots in one context, trees by sequence ids, every rollback checked."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipstream.core.ports import Saved
from slipstream.core.types import Array, Capabilities, Rollback, Span
from slipstream.errors import ContextError, InputError, MemoryShortage, ModelFileError, RollbackError, UsageError
from slipstream.models import layout
from slipstream.models.llamacpp import library
from slipstream.models.llamacpp.batch import Batch, branch_ids, branches, is_chain
from slipstream.models.llamacpp.order import ONE_AT_A_TIME, Branch, CellOrder
from slipstream.models.machine import usable_cores

_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: recurrent state without the attention cache


@dataclass(frozen=True)
class LlamaOptions:
    """How to open a model. `n_ctx` is per slot; 0 takes what the model was trained with, at most 4096."""

    n_ctx: int = 0
    n_slots: int = 1
    threads: int = 0  # 0: one for each physical core this process may use
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    flash_attn: bool | None = None  # None: where the back end has it
    gpu_layers: int = 0  # -1: all
    n_batch: int = 512

    def __post_init__(self) -> None:
        for name, low in (("n_ctx", 0), ("n_slots", 1), ("threads", 0), ("gpu_layers", -1), ("n_batch", 32)):
            if getattr(self, name) < low:
                raise InputError(f"{name} is {getattr(self, name)}", f"it must be at least {low}")
        if self.n_slots > 64:
            raise InputError(f"n_slots is {self.n_slots}", "64 at most")


@dataclass
class _Slot:
    main: int
    n_past: int = 0
    span: Span | None = None
    seqs: list[list[int]] | None = None
    branches: Sequence[int] = ()
    at: int = 0  # of its span in the batch
    loaded: bool = False  # from a saved state
    longest: int = 0  # tokens that it has had since it was empty: what the last of them did not see may be lost
    checkpoint: Any = None


class LlamaModel:
    """Logits rows are views into llama.cpp's buffer: valid until the next forward."""

    def __init__(self, path: Path, options: LlamaOptions | None = None) -> None:
        self.path, self.options = path, options or LlamaOptions()
        self._low = low = library.lib()
        self._ctx: Any = None
        self._model: Any = _load(low, path, self.options)
        try:
            self._open_context()
        except BaseException:
            self.close()
            raise

    def _open_context(self) -> None:
        low, o, model = self._low, self.options, self._model
        trained = low.llama_model_n_ctx_train(model)
        n_ctx = o.n_ctx or min(trained, 4096)
        if n_ctx > trained:
            raise ContextError(
                f"a context of {n_ctx} tokens was asked for, but {self.path.name} was trained with {trained}",
                f"use --ctx {trained} or less",
            )
        vocab = low.llama_model_get_vocab(model)
        rollback = _rollback(low, model)
        leaves = 1 if rollback == "checkpoint" else layout.leaves(o.n_slots)
        rows = layout.rows(o.n_slots, o.n_batch)
        p = low.llama_context_default_params()
        p.n_ctx = layout.cells(n_ctx, o.n_slots)
        p.n_batch = p.n_ubatch = o.n_batch
        p.n_seq_max = o.n_slots * leaves
        p.n_outputs_max = rows  # bounds the logits buffers, which a large vocabulary makes dear
        p.n_threads = p.n_threads_batch = o.threads or usable_cores()
        p.type_k, p.type_v = library.kv_type(o.kv_type_k), library.kv_type(o.kv_type_v)
        if o.flash_attn is not None:
            p.flash_attn_type = 1 if o.flash_attn else 0
        if o.kv_type_v not in ("f16", "f32", "bf16") and o.flash_attn is False:
            raise InputError("a quantised V cache needs flash attention", "leave --flash-attn on, or use --kv-type f16")
        p.kv_unified = True  # the branches of a tree share the cells of their common past
        p.swa_full = True  # a window's cache keeps all positions, so that rejected tokens can be cut exactly
        p.no_perf = True
        self._ctx = low.llama_init_from_model(model, p)
        if not self._ctx:
            raise MemoryShortage(
                f"llama.cpp could not make a context of {n_ctx} tokens: {library.last_error()}",
                "use a smaller --ctx or --kv-type q8_0; `slipstream check` shows what fits",
            )
        self._mem = low.llama_get_memory(self._ctx)
        self._n_vocab = int(low.llama_vocab_n_tokens(vocab))
        self._caps = Capabilities(
            self._n_vocab, n_ctx, o.n_slots, o.n_batch, leaves > 1, rollback, layout.ROWS_PER_SLOT - 1, leaves
        )
        self._rows = rows
        self._window = int(low.llama_model_n_swa(model))
        self._slots = [_Slot(i) for i in range(o.n_slots)]
        self._spare = [
            range(o.n_slots + i * (leaves - 1), o.n_slots + (i + 1) * (leaves - 1)) for i in range(o.n_slots)
        ]
        self._batch = Batch(low, o.n_batch, leaves)
        self._order: CellOrder | None = None
        if rollback == "free" and (ours := library.kernels_library()):
            self._order = CellOrder(ours, o.n_slots, leaves, n_ctx, o.n_batch, self._window)

    @property
    def caps(self) -> Capabilities:
        return self._caps

    @property
    def handle(self) -> Any:
        """The native model, for the tokenizer."""
        return self._model

    def n_past(self, slot: int) -> int:
        return self._slots[slot].n_past

    # -- forward ---------------------------------------------------------------------------------------------------

    def forward(self, spans: Sequence[Span]) -> list[Array]:
        self._batch.clear()
        if sum(len(s.want) for s in spans) > self._rows:
            raise UsageError(f"more than {self._rows} logits rows were asked for at once")
        for span in spans:
            slot = self._slots[span.slot]
            if slot.span is not None:
                raise UsageError("keep() must settle a forward before the next one")
            if slot.n_past + len(span.tokens) > self._caps.n_ctx + self._caps.n_batch:
                raise ContextError(
                    f"{slot.n_past + len(span.tokens)} tokens exceed a slot of {self._caps.n_ctx}", "use a larger --ctx"
                )
            slot.seqs, slot.branches = None, ()
            if not is_chain(span):
                slot.seqs, slot.branches = branch_ids(span, slot.main, self._spare[span.slot])
                for seq in slot.branches:
                    self._low.llama_memory_seq_cp(self._mem, slot.main, seq, -1, -1)
            if self._caps.rollback == "checkpoint" and len(span.want) > 1:
                slot.checkpoint = self._save(slot)
            slot.at, slot.longest = self._batch.n, max(slot.longest, slot.n_past)
            self._batch.add(span, slot.n_past, slot.main, slot.seqs)
        for span in spans:  # before the call: an interrupt right after it must find that cells were written
            self._slots[span.slot].span = span
        status = self._decode_in_order(spans)
        if status != 0:
            self._undo(spans, status)
        return self._logits(spans)

    def _decode(self) -> int:
        with ONE_AT_A_TIME:
            return int(self._low.llama_decode(self._ctx, self._batch.struct))

    def _decode_in_order(self, spans: Sequence[Span]) -> int:
        if self._order is None:
            return self._decode()
        found = []
        for span in spans:
            s = self._slots[span.slot]
            paths = branches(span.parents) if s.seqs else [range(len(span.tokens))]
            found += [Branch(span.slot, s.n_past, s.at + np.asarray(path, np.int32)) for path in paths]
        return self._order.during(found, self._batch.n, self._decode)

    def _logits(self, spans: Sequence[Span]) -> list[Array]:
        n = sum(len(s.want) for s in spans)
        if not n:
            return [np.empty((0, self._n_vocab), np.float32) for _ in spans]
        # Rows lie in the order of the batch, which is the order of the spans.
        every = np.ctypeslib.as_array(self._low.llama_get_logits(self._ctx), (n, self._n_vocab))
        rows, a = [], 0
        for span in spans:
            rows.append(every[a : a + len(span.want)])
            a += len(span.want)
        return rows

    def _undo(self, spans: Sequence[Span], status: int) -> None:
        """A failed forward leaves nothing behind; then says why."""
        for span in spans:
            if self._caps.rollback == "free":
                self.keep(span.slot, ())
            else:
                self.truncate(span.slot, 0)
        if status == 1:
            raise ContextError("the cache has no room for this forward", "use a larger --ctx or fewer slots")
        if status == 2:
            raise KeyboardInterrupt
        raise ModelFileError(f"llama_decode failed ({status}): {library.last_error()}", "try `slipstream doctor`")

    # -- rollback --------------------------------------------------------------------------------------------------

    def keep(self, slot: int, path: Sequence[int]) -> None:
        s, low, mem = self._slots[slot], self._low, self._mem
        span = s.span
        if span is None:
            raise UsageError("nothing to keep: no forward is open in this slot")
        s.span = None
        n_kept, n_before = len(path), s.n_past
        if self._caps.rollback == "checkpoint" and n_kept < len(span.tokens):
            self._restore(s, [span.tokens[i] for i in path])
            return
        if s.branches:
            owner = s.seqs[path[-1]][0] if s.seqs and n_kept else s.main
            if owner != s.main:  # the winner is another branch: its cells become the slot's
                self._remove(s.main, n_before)
                low.llama_memory_seq_cp(mem, owner, s.main, n_before, n_before + n_kept)
            for seq in s.branches:
                self._remove(seq, -1)
        if s.branches and self._order is not None:
            self._order.keep(slot, n_before, s.at + np.asarray(path, np.int32))
        s.n_past = n_before + n_kept
        if s.branches or n_kept < len(span.tokens):
            self._remove(s.main, s.n_past)
            self._check(s)
        s.checkpoint = None

    def truncate(self, slot: int, n_past: int) -> None:
        s = self._slots[slot]
        if s.span is None and n_past == s.n_past > 0:
            return
        if n_past > s.n_past:
            raise UsageError(f"cannot cut {s.n_past} tokens to {n_past}")
        if n_past > 0 and self._caps.rollback != "free":
            raise RollbackError("a recurrent state cannot be cut", "evaluate the prompt again")
        if 0 < n_past < s.n_past and not self._whole(s, n_past):
            raise RollbackError("what lies before the window has not been kept", "evaluate the prompt again")
        s.span = s.checkpoint = None
        for seq in s.branches:
            self._remove(seq, -1)
        self._remove(s.main, n_past if n_past else -1)
        s.n_past = n_past
        if not n_past:
            s.longest, s.loaded = 0, False
        self._check(s)

    def _whole(self, s: _Slot, n_past: int) -> bool:
        """Whether windowed layers still have what a token behind the first `n_past` sees.

        llama.cpp gives their cells away, and leaves them out of saved states, as soon as the last token does not see
        them, `swa_full` or not (`find_slot` and `state_write` in its llama-kv-cache.cpp).
        """
        if max(s.longest, s.n_past) < self._window or not self._window:
            return True
        if self._order is None or self._order.blind:  # one sequence fills its cells in turn: none is given away
            return self._caps.n_slots == 1 and not s.loaded
        return self._order.whole(s.main, n_past)

    def _remove(self, seq: int, start: int) -> None:
        if not self._low.llama_memory_seq_rm(self._mem, seq, start, -1):
            raise RollbackError(
                f"{self.path.name}: llama.cpp would not take back tokens from position {start}",
                "this model's cache cannot be cut; run it with --draft none",
            )

    def _check(self, s: _Slot) -> None:
        last = self._low.llama_memory_seq_pos_max(self._mem, s.main)
        if last != s.n_past - 1:
            raise RollbackError(
                f"the cache ends at position {last}, but {s.n_past - 1} was expected after a rollback",
                "please report this with the model's name",
            )

    # Putting a slot aside.

    def save(self, slot: int) -> Saved:
        s = self._slots[slot]
        size = self._low.llama_state_seq_get_size(self._ctx, s.main)
        data = (ctypes.c_uint8 * size)()
        if self._low.llama_state_seq_get_data(self._ctx, data, size, s.main) != size:
            raise RollbackError("llama.cpp could not save a slot's state", "use --cache-ram 0")
        cells = self._order.saved(slot, s.n_past) if self._order else None
        return Saved((data, s.n_past, cells), size)

    def load(self, slot: int, saved: Saved) -> None:
        data, n_past, cells = saved.data
        self.truncate(slot, 0)
        s = self._slots[slot]

        def restore() -> int:
            return int(self._low.llama_state_seq_set_data(self._ctx, data, len(data), s.main))

        if not (self._order.restoring(slot, cells, restore) if self._order else restore()):
            self.truncate(slot, 0)
            raise RollbackError("a slot's state could not be put back: the cache has no room for it", "")
        s.n_past = n_past
        s.longest, s.loaded = n_past, True
        self._check(s)

    # Recurrent and hybrid models: a checkpoint before a verified draft, restored and replayed after a rejection.

    def _save(self, s: _Slot) -> Any:
        size = self._low.llama_state_seq_get_size_ext(self._ctx, s.main, _PARTIAL)
        buffer = (ctypes.c_uint8 * size)()
        if self._low.llama_state_seq_get_data_ext(self._ctx, buffer, size, s.main, _PARTIAL) != size:
            raise RollbackError("llama.cpp could not save the recurrent state", "run with --draft none")
        return buffer

    def _restore(self, s: _Slot, kept: Sequence[int]) -> None:
        buffer, s.checkpoint = s.checkpoint, None
        if buffer is None:
            raise RollbackError("no checkpoint was taken before these tokens", "please report this")
        if self._low.llama_state_seq_set_data_ext(self._ctx, buffer, len(buffer), s.main, _PARTIAL) == 0:
            raise RollbackError("llama.cpp could not restore the recurrent state", "run with --draft none")
        self._remove(s.main, s.n_past)
        self._check(s)
        if kept:
            self._batch.clear()
            self._batch.add(Span(0, kept, range(-1, len(kept) - 1), ()), s.n_past, s.main, None)
            if self._decode() != 0:
                raise RollbackError("the replay after a checkpoint failed", "run with --draft none")
            s.n_past += len(kept)

    def close(self) -> None:
        """Free the context and the weights; safe to call twice."""
        if self._ctx:
            self._low.llama_free(self._ctx)
        if self._model:
            self._low.llama_model_free(self._model)
        self._ctx = self._model = None


def _load(low: Any, path: Path, o: LlamaOptions) -> Any:
    p = low.llama_model_default_params()
    p.n_gpu_layers = 999 if o.gpu_layers < 0 else o.gpu_layers
    p.load_mode = low.LLAMA_LOAD_MODE_NONE  # mapped, the file would stay in memory beside its repacked weights
    model = low.llama_model_load_from_file(str(path).encode(), p)
    if not model:
        raise ModelFileError(f"{path.name} could not be loaded: {library.last_error()}", "pull the file again")
    if low.llama_model_has_encoder(model) or low.llama_model_is_diffusion(model):
        low.llama_model_free(model)
        raise ModelFileError(f"{path.name} is not a causal language model", "speculative decoding needs a decoder")
    return model


def _rollback(low: Any, model: Any) -> Rollback:
    return "checkpoint" if low.llama_model_is_recurrent(model) or low.llama_model_is_hybrid(model) else "free"
