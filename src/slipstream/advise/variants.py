"""Several files of one model, given or requantised here, and the ways to draft that go with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from slipstream.errors import UnknownName
from slipstream.models.gguf import GGUFHeader, read_header
from slipstream.models.gguf_tables import GGML_TYPES
from slipstream.models.llamacpp.quantize import TYPES, Recipe, quantize

WHOLE = ("F32", "F16", "BF16")  # what nothing was taken from


@dataclass(frozen=True)
class Variant:
    """A model file. `source` and `made_of`: label and quantisation of what it was requantised from; empty if given."""

    label: str
    header: GGUFHeader
    source: str = ""
    made_of: str = ""

    def as_dict(self) -> dict[str, Any]:
        h = self.header
        about = {"file": h.path.name, "quantisation": h.quantization, "size": h.file_size, "bits_per_weight": self.bits}
        return {"label": self.label, **about, "made_of": self.made_of or None}

    @property
    def bits(self) -> float:
        """Bits a weight of all tensors together."""
        return 8 * sum(t.nbytes for t in self.header.tensors) / max(_weights(self.header), 1)

    @property
    def note(self) -> str:
        """What to know before this file is judged; empty when there is nothing."""
        if not self.made_of or self.made_of in WHOLE:
            return ""
        return (
            f"{self.label} lost precision twice: it was made from a file that was quantised already. Judge "
            f"{self.header.quantization} itself by a file that was made from F16"
        )


@dataclass(frozen=True)
class Way:
    """A way to draft: `names` are drafters without a model."""

    label: str
    names: tuple[str, ...] = ()
    model: Variant | None = None


PLAIN = Way("none")


def given(headers: Sequence[GGUFHeader]) -> list[Variant]:
    """Files as variants, each once, named by their quantisation, or by the file where that is not enough."""
    files = list({header.path: header for header in headers}.values())
    kinds, stems = [h.quantization for h in files], [h.path.stem for h in files]
    found = []
    for i, (header, kind, stem) in enumerate(zip(files, kinds, stems, strict=True), 1):
        label = kind if kinds.count(kind) == 1 else stem if stems.count(stem) == 1 else f"{stem} ({i})"
        found.append(Variant(label, header))
    return found


def reference_of(variants: Sequence[Variant]) -> Variant:
    """The given file that holds most: bits a weight, then size. One made here holds no more than what it is made of."""
    return max((v for v in variants if not v.made_of), key=lambda v: (v.bits, v.header.file_size))


def types(text: str) -> list[str]:
    """From a comma-separated list such as Q4_0,q8_0. Raises UnknownName, which names the nearest."""
    names = list(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    for name in names:
        if name not in TYPES:
            raise UnknownName("quantisation", name.upper(), map(str.upper, TYPES))
    return names


def recipe(header: GGUFHeader, kind: str, target: bool) -> Recipe:
    """A target keeps its output matrix finer (Q6_K, or Q8_0 where rows do not divide), as files that are handed round
    do; a draft model is made as fast as it can be."""
    if not target or kind in ("f16", "q8_0"):
        return Recipe(kind)
    finer = "q6_k" if header.n_embd % 256 == 0 else "q8_0"
    tied = all(t.name != "output.weight" for t in header.tensors)
    return Recipe(kind, embedding=finer) if tied else Recipe(kind, output=finer)


def make(source: Variant, kind: str, folder: Path, target: bool, threads: int = 0) -> Variant:
    """A requantised file of `source` in `folder`, as a target or as a draft model.

    Raises ModelFileError when llama.cpp refuses.
    """
    head = source.header
    file = folder / f"{'target' if target else 'draft'}-{head.path.stem}-{kind}.gguf"
    quantize(head.path, file, recipe(head, kind, target), threads)
    label = f"{kind.upper()} from {head.quantization}" if target else f"{source.label} as {kind.upper()}"
    return Variant(label, read_header(file), source.label, head.quantization)


def space(header: GGUFHeader, kinds: Sequence[str]) -> int:
    """Bytes of disk that requantised files take at most; a row that a block does not divide falls back to Q8_0."""
    used = (GGML_TYPES[TYPES[kind][1]] for kind in kinds)
    matrices = [t for t in header.tensors if len(t.shape) > 1]  # all else stays as it is
    n, rest = sum(prod(t.shape) for t in matrices), header.file_size - sum(t.nbytes for t in matrices)
    padding = header.alignment * len(header.tensors)
    return sum(int(n * max(8 * t.size / t.block, 8.5) / 8) + rest + padding for t in used)


def _weights(header: GGUFHeader) -> int:
    return sum(prod(t.shape) for t in header.tensors)
