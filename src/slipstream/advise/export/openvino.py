"""OpenVINO GenAI 2026.4: names from the package's type stubs, its sample prompt_lookup_decoding_lm and its GGUF guide.

It reads a GGUF file as target; as draft model it takes only a folder in its own format, which a plan cannot name.
"""

from __future__ import annotations

from slipstream.advise.export.setup import READ_PROMPT, Export, Setup, program, ways

MATCH = 3  # the longest match that its prompt lookup looks for; the samples' own number


def export(setup: Setup) -> Export:
    way = ways(setup, "OpenVINO", lookup="prompt lookup", model=False)
    more, settings = "", ["config.max_new_tokens = 256"]
    if way.lookup:
        more = ", prompt_lookup=True"
        settings += [f"config.num_assistant_tokens = {way.length}", f"config.max_ngram_size = {MATCH}"]
    lines = [
        f'"""Decoding with OpenVINO GenAI{", with drafts" if way.any else ""}. Usage: python FILE "a prompt" """',
        "",
        "import sys",
        "",
        "import openvino_genai as genai",
        "",
        f'pipeline = genai.LLMPipeline({str(setup.target)!r}, "CPU"{more})',
        "config = genai.GenerationConfig()",
        *settings,
        READ_PROMPT,
        "print(pipeline.generate(prompt, config))",
    ]
    notes = [*way.notes, "it needs the package openvino-genai, which reads GGUF files of Llama, Qwen2 and Qwen3 models"]
    if setup.draft:
        notes.append("a draft model must be converted to OpenVINO's own format first")
    return program("openvino", "\n".join(lines) + "\n", notes)
