"""Facts about GGUF files that are written only in llama.cpp's source, as of llama-cpp-python 0.3.36."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class GGMLType:
    """How ggml stores numbers: `block` numbers in `size` bytes."""

    name: str
    block: int
    size: int

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of that shape (innermost dimension first, as GGUF gives it)."""
        return prod(shape) // self.block * self.size


# Numbers from ggml.h (enum ggml_type), sizes from the static_asserts in ggml-common.h.
GGML_TYPES = {
    number: GGMLType(name, block, size)
    for number, name, block, size in (
        (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 36), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1), (25, "I16", 1, 2), (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56), (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17), (40, "NVFP4", 64, 36), (41, "Q1_0", 128, 18), (42, "Q2_0", 64, 18),
    )
}  # fmt: skip

# general.file_type: llama.h, enum llama_ftype.
FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4", 39: "NVFP4",
    40: "Q1_0", 41: "Q2_0",
}  # fmt: skip

# llama-arch.cpp of llama-cpp-python 0.3.36: llm_arch_is_recurrent, llm_arch_is_hybrid (names from LLM_ARCH_NAMES).
RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
HYBRID = frozenset({
    "jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "qwen3next",
    "kimi-linear", "bailingmoe3", "kimi-k3", "glm5-next", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "minimax-01",
})  # fmt: skip
# Period of the full-attention layers where the file does not say (src/models/*.cpp, full_attn_interval).
FULL_ATTENTION_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "qwen4exp": 4, "minimax-01": 8}

# Architectures whose sliding window llama.cpp honours without a pattern in the file: (period, full layer comes first).
# From the load_swa_pattern calls in src/models/*.cpp. Others (phi3, llama, qwen2) ignore the key or need the pattern.
SWA_PERIOD = {
    "gemma2": (2, False), "gpt-oss": (2, False), "cohere2": (4, False), "olmo2": (4, False), "exaone4": (4, False),
    "exaone-moe": (4, False), "llama4": (4, False), "afmoe": (4, False), "muse-glimmer": (4, False),
    "mellum": (4, False), "gemma3n": (5, False), "gemma3": (6, False), "gemma-embedding": (6, False),
    "plamo3": (8, False), "modern-bert": (3, True), "cohere2moe": (4, True), "smallthinker": (4, True),
    "laguna": (4, True), "deepseek4": (0, False),
}  # fmt: skip
