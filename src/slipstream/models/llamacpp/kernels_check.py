"""Compares freshly compiled kernels with llama.cpp's own functions, in a process that may crash.

    python -m slipstream.models.llamacpp.kernels_check KERNELS FOLDER_OF_LLAMA_CPP_LIBRARIES

Every weight type is multiplied through ggml's own graphs, so that the structs, the repacked layouts, the threads and
the work memory are tested as well as the arithmetic. Prints a JSON with the largest error; exits with 1 on a failure.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]

# ggml's number of the type, and whether its rows are interleaved on these CPUs (Q6_K: because the kernels ask for it)
TYPES = {
    "q4_K": (12, True),
    "q6_K": (14, True),
    "q4_0": (2, True),
    "q4_1": (3, False),
    "q5_0": (6, False),
    "q8_0": (8, False),
}
ROWS, TOKENS = 72, 70
SHAPES = (256, 512, 1536)
COUNTS = (*range(1, 18), 24, 31, 32, 64, 65, TOKENS)
# Largest difference, as a share of sum(|weight| * |activation|). One unit in one integer product is above it; the
# rounding of float sums is below.
BOUND = 1e-6
# Of attention: (width of a head, query heads, key heads); cells, tokens, and the largest error of values around 1.
HEADS = ((64, 9, 3), (128, 12, 2), (256, 4, 1), (96, 4, 4))
CELLS, ATTEND = 288, 19
ATTENTION_BOUND = 4e-6
REPACK = "_Z35ggml_backend_cpu_repack_buffer_typev"


class _InitParams(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class Ggml:
    """ggml, with our kernels in front; `on` says whether they answer."""

    def __init__(self, kernels: Path, folder: Path) -> None:
        ours = ctypes.CDLL(str(kernels), mode=ctypes.RTLD_GLOBAL)
        self.base, self.cpu = (ctypes.CDLL(str(folder / f"lib{n}.so.0")) for n in ("ggml-base", "ggml-cpu"))
        self.on = ctypes.c_int.in_dll(ours, "slipstream_kernels_on")
        self.used = ctypes.c_long.in_dll(ours, "slipstream_kernels_used")
        self.backend = self.call(self.cpu, "ggml_backend_cpu_init")()

    @staticmethod
    def call(lib: ctypes.CDLL, name: str, result: Any = ctypes.c_void_p) -> Callable[..., Any]:
        function = getattr(lib, name)
        function.restype = result
        return lambda *a: function(*(ctypes.c_void_p(x) if isinstance(x, int) and x > 1 << 31 else x for x in a))

    def context(self) -> int:
        return int(self.call(self.base, "ggml_init")(_InitParams(1 << 20, None, True)))

    def tensor(self, context: int, kind: int, k: int, n: int) -> int:
        return int(self.call(self.base, "ggml_new_tensor_2d")(context, kind, ctypes.c_int64(k), ctypes.c_int64(n)))

    def place(self, context: int, packed: bool) -> None:
        kind = self.call(self.cpu, REPACK)() if packed else self.call(self.base, "ggml_backend_cpu_buffer_type")()
        if not self.call(self.base, "ggml_backend_alloc_ctx_tensors_from_buft")(context, kind):
            raise SystemExit("no buffer for the tensors")

    def fill(self, tensor: int, data: bytes) -> None:
        self.call(self.base, "ggml_backend_tensor_set", None)(
            tensor, data, ctypes.c_size_t(0), ctypes.c_size_t(len(data))
        )

    def quantize(self, kind: int, weights: Floats) -> bytes:
        rows, k = weights.shape
        out = ctypes.create_string_buffer(weights.nbytes)
        size = self.call(self.base, "ggml_quantize_chunk", ctypes.c_size_t)(
            kind, ctypes.c_void_p(weights.ctypes.data), out, *map(ctypes.c_int64, (0, rows, k)), None
        )
        return out.raw[:size]

    def weights(self, kind: int, packed: bool, values: Floats) -> int:
        """A tensor of quantised weights, in the buffer where llama.cpp would put it."""
        context = self.context()
        tensor = self.tensor(context, kind, values.shape[1], values.shape[0])
        self.place(context, packed)
        self.fill(tensor, self.quantize(kind, values))
        return tensor

    def attend(self, q: Floats, k: Halves, v: Halves, mask: Halves, threads: int) -> Floats:
        """q [heads, n, width] over k and v [key heads, cells, width], mask [n, cells]: [n, heads, width]."""
        context = self.context()
        new = self.call(self.base, "ggml_new_tensor_3d")
        tensors = [int(new(context, kind, *map(ctypes.c_int64, a.shape[::-1]))) for kind, a in ((0, q), (1, k), (1, v))]
        tensors.append(self.tensor(context, 1, mask.shape[1], mask.shape[0]))
        floats = (ctypes.c_float(q.shape[2] ** -0.5), ctypes.c_float(0), ctypes.c_float(0))
        result = self.call(self.base, "ggml_flash_attn_ext")(context, *tensors, *floats)
        self.place(context, False)
        for tensor, values in zip(tensors, (q, k, v, mask), strict=True):
            self.fill(tensor, np.ascontiguousarray(values).tobytes())
        return self.compute(context, result, (q.shape[1], q.shape[0], q.shape[2]), threads)

    def multiply(self, weights: int, rows: int, x: Floats, threads: int) -> Floats:
        """x [n, k] times the weights, through a graph: [n, rows]."""
        context = self.context()
        tokens = self.tensor(context, 0, x.shape[1], x.shape[0])
        product = self.call(self.base, "ggml_mul_mat")(context, weights, tokens)
        self.place(context, False)
        self.fill(tokens, np.ascontiguousarray(x).tobytes())
        if self.on.value and not self.call(self.base, "ggml_backend_supports_op", ctypes.c_bool)(self.backend, product):
            raise SystemExit("llama.cpp would not put such weights where the kernels find them")
        return self.compute(context, product, (x.shape[0], rows), threads)

    def compute(self, context: int, result: int, shape: tuple[int, ...], threads: int) -> Floats:
        graph = self.call(self.base, "ggml_new_graph")(context)
        self.call(self.base, "ggml_build_forward_expand", None)(graph, result)
        self.call(self.cpu, "ggml_backend_cpu_set_n_threads", None)(self.backend, threads)
        if self.call(self.base, "ggml_backend_graph_compute", ctypes.c_int)(self.backend, graph):
            raise SystemExit("the graph could not be computed")
        out = np.empty(shape, np.float32)
        get = self.call(self.base, "ggml_backend_tensor_get", None)
        get(result, ctypes.c_void_p(out.ctypes.data), ctypes.c_size_t(0), ctypes.c_size_t(out.nbytes))
        return out


def problems(ggml: Ggml, name: str, k: int, worst: dict[str, float]) -> Iterator[str]:
    """What is wrong with one type and row length; `worst` gets its largest error."""
    kind, packed = TYPES[name]
    rng = np.random.default_rng(k)
    values = rng.standard_normal((ROWS, k), dtype=np.float32)
    x = rng.standard_normal((TOKENS, k), dtype=np.float32) * rng.choice([0.01, 1, 30], (TOKENS, 1)).astype(np.float32)
    x[3] = 0
    weights = ggml.weights(kind, packed, values)
    ggml.on.value = 0
    theirs = np.concatenate([ggml.multiply(weights, ROWS, row[None], 1) for row in x])
    ggml.on.value, before = 1, ggml.used.value
    alone = np.concatenate([ggml.multiply(weights, ROWS, row[None], 1) for row in x])
    if ggml.used.value != before + TOKENS:
        yield f"{name}: llama.cpp does not call the kernels"
    error = np.abs(alone - theirs) / (np.abs(x) @ np.abs(values).T + 1e-30)
    worst[name] = max(worst.get(name, 0.0), float(error.max()))
    if not error.max() <= BOUND:
        yield f"{name}: differs from llama.cpp by {error.max():.2e} at row length {k}"
    for n in COUNTS:
        if not np.array_equal(ggml.multiply(weights, ROWS, x[:n], 1 + n % 2), alone[:n]):
            yield f"{name}: a row in a batch of {n} differs from the row alone at row length {k}"


def attention_problems(ggml: Ggml, width: int, heads: int, key_heads: int, worst: dict[str, float]) -> Iterator[str]:
    """The same for attention, against its definition in double precision: T tokens at the end of CELLS cells, the last
    of which nobody may see."""
    rng = np.random.default_rng(width)
    q = rng.standard_normal((heads, ATTEND, width), dtype=np.float32)
    k, v = (rng.standard_normal((2, key_heads, CELLS, width)) * [[[[1.5]]], [[[1.0]]]]).astype(np.float16)
    last = np.arange(CELLS - ATTEND - 5, CELLS - 5)  # the cell of each token
    mask = np.where(np.arange(CELLS) <= last[:, None], 0, -np.inf).astype(np.float16)
    mask[-1, 40:90] = -np.inf  # another branch
    scores = np.einsum("htd,hcd->htc", q.astype(float), np.repeat(k.astype(float), heads // key_heads, 0)) / width**0.5
    weights = np.exp(scores + mask - (scores + mask).max(2, keepdims=True))
    exact = np.einsum("htc,hcd->thd", weights, np.repeat(v.astype(float), heads // key_heads, 0))
    exact /= weights.sum(2).T[..., None]
    ggml.on.value = 1
    alone = np.concatenate([ggml.attend(q[:, t : t + 1], k, v, mask[t : t + 1], 1) for t in range(ATTEND)])
    name = f"attention {width}"
    worst[name] = float(np.abs(alone - exact).max())
    if not worst[name] <= ATTENTION_BOUND:
        yield f"{name}: differs from its definition by {worst[name]:.2e}"
    for n in range(1, ATTEND + 1):
        if not np.array_equal(ggml.attend(q[:, :n], k, v, mask[:n], 1 + n % 3), alone[:n]):
            yield f"{name}: a row in a batch of {n} differs from the row alone"


def main() -> None:
    ggml = Ggml(Path(sys.argv[1]), Path(sys.argv[2]))
    worst: dict[str, float] = {}
    for width, heads, key_heads in HEADS:
        for problem in attention_problems(ggml, width, heads, key_heads, worst):
            raise SystemExit(problem)
    for name in TYPES:
        for k in SHAPES:
            for problem in problems(ggml, name, k, worst):
                raise SystemExit(problem)
    print(json.dumps({"passed": True, "bound": BOUND, "largest_error": worst, "row_lengths": SHAPES, "tokens": COUNTS}))


if __name__ == "__main__":
    main()
