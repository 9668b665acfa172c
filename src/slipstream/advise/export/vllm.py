"""vLLM 0.33: names from its documents features/speculative_decoding (README, suffix, draft_model) and
features/quantization/gguf, and from vllm/config/speculative.py."""

from __future__ import annotations

import json

from slipstream.advise.export.setup import Export, Setup, command, ways


def export(setup: Setup) -> Export:
    way = ways(setup, "vLLM", lookup="suffix")
    notes = [
        *way.notes,
        "vLLM calls GGUF experimental: it needs the package vllm-gguf-plugin, and better the original model",
    ]
    argv = ["vllm", "serve", str(setup.target)]
    config: dict[str, object] = {}
    if way.draft is not None:
        config = {"method": "draft_model", "model": str(way.draft)}
        notes.append("vLLM documents no GGUF file as draft model: if it refuses, name the original model there")
    elif way.lookup:
        config = {"method": "suffix"}
        notes.append("on vLLM's V1 model runner, suffix needs the package arctic-inference")
    if config:
        config["num_speculative_tokens"] = way.length
        if setup.verify == "block":
            config["rejection_sample_method"] = "block"
        argv += ["--speculative-config", json.dumps(config)]
    return command("vllm", argv, notes)
