"""transformers 5.24: names from its GenerationConfig and documents (GGUF, assisted decoding).

The number of tokens is read from the *assistant's* generation config; given to `generate` it changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from slipstream.advise.export.setup import READ_PROMPT, Export, Setup, program, ways


def export(setup: Setup) -> Export:
    way = ways(setup, "transformers", lookup="prompt lookup", threads=True)
    lines = [
        f'"""Decoding with transformers{", with drafts" if way.any else ""}. Usage: python FILE "a prompt" """',
        "",
        "import sys",
        "",
        *(["import torch"] if setup.threads else []),
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        *([f"torch.set_num_threads({setup.threads})"] if setup.threads else []),
        *_load("model", setup.target),
        f"tokenizer = AutoTokenizer.from_pretrained({str(setup.target.parent)!r}, gguf_file={setup.target.name!r})",
    ]
    more = ""
    if way.draft is not None:
        lines += [*_load("assistant", way.draft), f"assistant.generation_config.num_assistant_tokens = {way.length}"]
        more = "assistant_model=assistant, "
    elif way.lookup:
        more = f"prompt_lookup_num_tokens={way.length}, "
    lines += [
        READ_PROMPT,
        "if tokenizer.chat_template:",
        '    chat = [{"role": "user", "content": prompt}]',
        "    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)",
        'inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=not tokenizer.chat_template)',
        f"ids = model.generate(**inputs, {more}do_sample=False, max_new_tokens=256)",
        'print(tokenizer.decode(ids[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True))',
    ]
    notes = [
        *way.notes,
        "it needs the packages torch, transformers, gguf and accelerate; GGUF weights are unpacked to 4 bytes each",
    ]
    return program("transformers", "\n".join(lines) + "\n", notes)


def _load(name: str, file: Path) -> list[str]:
    return [f"{name} = AutoModelForCausalLM.from_pretrained({str(file.parent)!r}, gguf_file={file.name!r})"]
