"""Tiny recurrent and hybrid models with random weights, as real GGUF files that llama.cpp loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gguf_writer import gguf_bytes

N_VOCAB, N_EMBD, N_FF, D_CONV, D_STATE, DT_RANK = 64, 32, 64, 4, 8, 4
Weights = dict[str, np.ndarray]


def _write(path: Path, metadata: Mapping[str, Any], weights: Weights) -> Path:
    """GGUF shapes are numpy's turned around."""
    tensors = [(name, tuple(reversed(w.shape)), "F32") for name, w in weights.items()]
    head = gguf_bytes(metadata, tensors, data=False)
    body = b"".join((raw := w.astype("<f4").tobytes()) + b"\0" * (-len(raw) % 32) for w in weights.values())
    path.write_bytes(head + body)
    return path


def _metadata(arch: str, layers: int, **more: Any) -> dict[str, Any]:
    own = {
        "context_length": 512,
        "embedding_length": N_EMBD,
        "feed_forward_length": N_FF,
        "block_count": layers,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "ssm.conv_kernel": D_CONV,
        "ssm.inner_size": 2 * N_EMBD,
        "ssm.state_size": D_STATE,
        "ssm.time_step_rank": DT_RANK,
        "vocab_size": N_VOCAB,
    } | {key.replace("__", "."): value for key, value in more.items()}
    return {
        "general.architecture": arch,
        "general.file_type": 0,
        "tokenizer.ggml.model": "no_vocab",
        **{f"{arch}.{key}": value for key, value in own.items()},
    }


class _Random:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape: int, scale: float | None = None) -> np.ndarray:
        size = scale if scale is not None else 1.2 / np.sqrt(shape[-1])
        return self.rng.standard_normal(shape) * size

    def ssm(self, name: str, norms: bool) -> Weights:
        inner = 2 * N_EMBD
        out = {
            f"{name}.ssm_in.weight": self(2 * inner, N_EMBD),
            f"{name}.ssm_conv1d.weight": self(inner, D_CONV),
            f"{name}.ssm_conv1d.bias": self(inner, scale=0.1),
            f"{name}.ssm_x.weight": self(DT_RANK + 2 * D_STATE, inner),
            f"{name}.ssm_dt.weight": self(inner, DT_RANK),
            f"{name}.ssm_dt.bias": self(inner, scale=0.1),
            f"{name}.ssm_a": -np.exp(self(inner, D_STATE, scale=0.3)),
            f"{name}.ssm_d": np.ones(inner),
            f"{name}.ssm_out.weight": self(N_EMBD, inner),
        }
        if norms:
            for part, size in (("dt", DT_RANK), ("b", D_STATE), ("c", D_STATE)):
                out[f"{name}.ssm_{part}_norm.weight"] = np.ones(size)
        return out

    def ends(self) -> Weights:
        return {
            "token_embd.weight": self(N_VOCAB, N_EMBD, scale=1.0),
            "output_norm.weight": np.ones(N_EMBD),
            "output.weight": self(N_VOCAB, N_EMBD, scale=1.0),
        }


def mamba(path: Path, seed: int = 0) -> Path:
    """Two recurrent layers."""
    random, layers = _Random(seed), 2
    weights = random.ends()
    for i in range(layers):
        weights |= {f"blk.{i}.attn_norm.weight": np.ones(N_EMBD), **random.ssm(f"blk.{i}", norms=False)}
    return _write(path, _metadata("mamba", layers, attention__head_count=0), weights)


def jamba(path: Path, seed: int = 0) -> Path:
    """One recurrent layer and one with attention."""
    random, layers = _Random(seed), 2
    heads = np.array([0, 2], "<i4")
    weights = random.ends()
    for i in range(layers):
        name = f"blk.{i}"
        weights |= {f"{name}.attn_norm.weight": np.ones(N_EMBD), f"{name}.ffn_norm.weight": np.ones(N_EMBD)}
        if heads[i]:
            for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
                weights[f"{name}.{part}.weight"] = random(N_EMBD, N_EMBD)
        else:
            weights |= random.ssm(name, norms=True)
        weights |= {
            f"{name}.ffn_gate.weight": random(N_FF, N_EMBD),
            f"{name}.ffn_up.weight": random(N_FF, N_EMBD),
            f"{name}.ffn_down.weight": random(N_EMBD, N_FF),
        }
    return _write(path, _metadata("jamba", layers, attention__head_count=2, attention__head_count_kv=heads), weights)
