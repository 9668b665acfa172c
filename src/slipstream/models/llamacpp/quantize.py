"""Other forms of a GGUF model: requantised, with layers left out.

Of a draft model only what it guesses may get worse, never the text, for the target checks every guess. Of a target it
is the text that changes: `slipstream matrix` says by how much.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slipstream.errors import ModelFileError, UnknownName
from slipstream.models.gguf import GGUFHeader
from slipstream.models.llamacpp import library
from slipstream.models.machine import usable_cores

# name -> (llama_ftype, ggml_type). `pure` makes every matrix of the first one's default type, which is the second.
TYPES = {
    "f16": (1, 1), "q4_0": (2, 2), "q4_1": (3, 3), "q8_0": (7, 8), "q5_0": (8, 6), "q5_1": (9, 7), "q2_k": (10, 10),
    "q3_k": (11, 11), "q4_k": (14, 12), "q5_k": (16, 13), "q6_k": (18, 14), "iq4_nl": (25, 20), "iq4_xs": (30, 23),
}  # fmt: skip
_FILE_TYPE, _TENSOR_TYPE = 0, 1


@dataclass(frozen=True)
class Recipe:
    """What to make of a model. `quantisation` None copies the tensors as they are; `drop` lists layers to leave out.

    `output` and `embedding` are types of these two matrices, None: as all others. A model whose output shares the
    embedding's matrix has only the latter. A row that a type's block does not divide falls back to a similar type.
    """

    quantisation: str | None = None
    output: str | None = None
    embedding: str | None = None
    drop: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in (self.quantisation, self.output, self.embedding):
            if name is not None and name not in TYPES:
                raise UnknownName("quantisation", name, TYPES)

    @property
    def as_given(self) -> bool:
        return self == Recipe()

    def __str__(self) -> str:
        parts = [self.quantisation or "as given"]
        parts += [f"{part} {kind}" for part, kind in (("output", self.output), ("embedding", self.embedding)) if kind]
        parts += [f"without layers {spans(self.drop)}"] if self.drop else []
        return ", ".join(parts)


def layers_can_go(header: GGUFHeader) -> bool:
    """All layers are alike, so that some can be left out. Where they differ, llama.cpp tells by their numbers which is
    which, and these would no longer be right."""
    by_layer = any(
        isinstance(value, np.ndarray) and value.size >= header.n_layers
        for key, value in header.metadata.items()
        if key.startswith(f"{header.architecture}.")
    )
    odd = ("{arch}.nextn_predict_layers", "{arch}.leading_dense_block_count", "{arch}.attention.shared_kv_layers")
    unlike = header.sliding_window or header.is_recurrent or header.is_hybrid
    return not (by_layer or unlike or any(header.count(key, 0) for key in odd))


def spans(numbers: tuple[int, ...]) -> str:
    """Numbers in rising order, runs shortened: (3, 4, 5, 9) is "3-5 9"."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def quantize(source: Path, destination: Path, recipe: Recipe, threads: int = 0) -> None:
    """Write `source`, changed by `recipe`, to `destination`: the whole file or nothing.

    The caller sees to room on the disk and to layers that exist. Cannot be interrupted while it runs (some seconds
    for each 10^9 weights). Raises ModelFileError when llama.cpp refuses.
    """
    low = library.lib()
    p = low.llama_model_quantize_default_params()
    p.nthread = threads or usable_cores()
    p.allow_requantize = p.pure = True
    if recipe.quantisation is None:
        p.only_copy = True
    else:
        p.ftype = TYPES[recipe.quantisation][_FILE_TYPE]
    if recipe.output:
        p.output_tensor_type = TYPES[recipe.output][_TENSOR_TYPE]
    if recipe.embedding:
        p.token_embedding_type = TYPES[recipe.embedding][_TENSOR_TYPE]
    if recipe.drop:  # ended by -1; llama.cpp wants them in rising order and writes the new number of layers
        p.prune_layers = (ctypes.c_int32 * (len(recipe.drop) + 1))(*sorted(set(recipe.drop)), -1)
    fresh = destination.with_name(f".{destination.name}.{os.getpid()}.new")
    try:
        failed = low.llama_model_quantize(os.fsencode(source), os.fsencode(fresh), ctypes.byref(p))
        if failed:
            raise ModelFileError(
                f"{source.name} could not be written as {recipe}: {library.last_error()}",
                "use a draft model in another quantisation, such as Q8_0 or F16",
            )
        os.replace(fresh, destination)
    finally:
        fresh.unlink(missing_ok=True)
