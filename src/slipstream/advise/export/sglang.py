"""SGLang 0.5.23: names from its documents advanced_features/speculative_decoding and model_loading.

`--speculative-num-draft-tokens` counts the token that is verified anyway, so it is one more than is guessed.
"""

from __future__ import annotations

from slipstream.advise.export.setup import Export, Setup, command, ways


def export(setup: Setup) -> Export:
    way = ways(setup, "SGLang", lookup="NGRAM")
    notes = list(way.notes)
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", str(setup.target)]
    verified = str(way.length + 1)
    if way.draft is not None:
        argv += ["--speculative-algorithm", "STANDALONE", "--speculative-draft-model-path", str(way.draft)]
        argv += ["--speculative-num-steps", str(way.length), "--speculative-eagle-topk", "1"]
        argv += ["--speculative-num-draft-tokens", verified]
        notes.append("SGLang documents no GGUF file as draft model: if it refuses, name the original model there")
    elif way.lookup:
        argv += ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", verified]
        notes.append("SGLang's NGRAM needs a CUDA device")
    return command("sglang", argv, notes)
