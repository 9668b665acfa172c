"""Predicted beside measured memory: opens models in a child process and reads its resident set.

    python benchmarks/memory.py TARGET.gguf [DRAFT.gguf] [MORE.gguf ...] [--out DIR]

The first two files are also opened together, as a pair. Prints a table to stderr and JSON to stdout; with --out also
writes the JSON there under today's date. Sizes are MiB. "predicted" is slipstream.models.memory; "measured" is the
growth of the resident set from before loading to after a batch of 512, a batch of 8 and one of `n_outputs` wanted rows.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

MIB = 2**20
TYPES = {"f16": 1, "q8_0": 8}


def child(case: dict[str, Any]) -> dict[str, Any]:
    """Runs in its own process. Returns resident MiB after each stage, and seconds to load."""
    import llama_cpp as lib

    lib.llama_backend_init()
    quiet = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(quiet, None)
    process = psutil.Process()
    start = process.memory_info().rss
    out: dict[str, Any] = {"load_s": 0.0}

    def mark(stage: str) -> None:
        out[stage] = (process.memory_info().rss - start) / MIB

    models, contexts = [], []
    for path in case["paths"]:
        began = time.perf_counter()
        params = lib.llama_model_default_params()
        params.load_mode = lib.LLAMA_LOAD_MODE_MMAP if case["mmap"] else lib.LLAMA_LOAD_MODE_NONE
        params.n_gpu_layers = 0
        models.append(lib.llama_model_load_from_file(path.encode(), params))
        out["load_s"] += time.perf_counter() - began
    mark("models")
    for model in models:
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = case["cells"], 512, 512
        params.n_seq_max, params.n_outputs_max = case["n_seqs"], case["n_outputs"]
        params.kv_unified = params.swa_full = True
        params.type_k = params.type_v = TYPES[case["kv_type"]]
        params.flash_attn_type = 1
        params.n_threads = params.n_threads_batch = psutil.cpu_count(logical=False) or 1
        contexts.append(lib.llama_init_from_model(model, params))
    mark("contexts")
    position = 0
    fill = range(0, case["n_ctx"] - 512, 512) if case["fill"] else range(1)
    for stage, n, wanted in [("prefill", 512, 1) for _ in fill] + [
        ("rows_8", 8, 8),
        ("rows_all", case["n_outputs"], case["n_outputs"]),
    ]:
        for context in contexts:
            decode(lib, context, n, wanted, position)
        position += n
        mark(stage)
    memory = process.memory_full_info()
    return out | {"uss": (memory.uss - start) / MIB, "pss": (memory.pss - start) / MIB}


def decode(lib: Any, context: Any, n: int, wanted: int, position: int) -> None:
    batch = lib.llama_batch_init(n, 0, 1)
    batch.n_tokens = n
    for i in range(n):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = 100 + i, position + i, 1, 0
        batch.logits[i] = i >= n - wanted
    if code := lib.llama_decode(context, batch):
        raise SystemExit(f"llama_decode returned {code}")
    lib.llama_batch_free(batch)


def predict(case: dict[str, Any]) -> dict[str, float]:
    from slipstream.models.gguf import read_header
    from slipstream.models.memory import Parts, Settings, estimate

    settings = Settings(
        case["n_ctx"], kv_type_k=case["kv_type"], kv_type_v=case["kv_type"], extra_seqs=case["n_seqs"] - 1,
        n_outputs=case["n_outputs"], mmap=case["mmap"],
    )  # fmt: skip
    case["cells"] = settings.cells
    parts = sum((estimate(read_header(path), settings).all for path in case["paths"]), Parts())
    names = ("weights", "kv", "compute", "overhead", "total")
    return {name: getattr(parts, name) / MIB for name in names}


def cases(paths: list[str]) -> list[dict[str, Any]]:
    base = {"kv_type": "f16", "mmap": False, "n_ctx": 4096, "n_seqs": 16, "n_outputs": 64, "fill": False}
    pair = [base | {"paths": paths[:2], "mmap": mmap} for mmap in (False, True)] if len(paths) > 1 else []
    single = [base | {"paths": [path], "n_ctx": n} for path in paths for n in (1024, 4096, 8192)]
    other = [base | {"paths": [path]} | change for path in paths for change in ({"kv_type": "q8_0"}, {"mmap": True})]
    smallest = min(paths, key=lambda path: Path(path).stat().st_size)
    return [*pair, *single, *other, base | {"paths": [smallest], "fill": True}]


def measure(case: dict[str, Any]) -> dict[str, Any]:
    predicted = predict(case)
    command = [sys.executable, __file__, "--child", json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the child failed ({done.returncode}): {done.stderr[-500:]}")
    measured = json.loads(done.stdout.splitlines()[-1])
    shown = case | {"paths": [Path(p).name for p in case["paths"]]}
    error = {stage: predicted["total"] / measured[stage] - 1 for stage in ("rows_8", "rows_all")}
    loaded, filled = "mmap" if case["mmap"] else "read", "full" if case["fill"] else "    "
    print(
        f"{'+'.join(shown['paths']):32} ctx {case['n_ctx']:5} {case['kv_type']:5} {loaded} {filled} "
        f"predicted {predicted['total']:7.1f}  measured {measured['rows_all']:7.1f} ({error['rows_all']:+.1%}); "
        f"with 8 rows {measured['rows_8']:7.1f} ({error['rows_8']:+.1%}); load {measured['load_s']:.2f} s",
        file=sys.stderr,
    )
    return {"case": shown, "predicted": predicted, "measured": measured, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--out", type=Path, help="folder for a dated copy of the JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(json.loads(arguments.child))))
        return
    if not arguments.models:
        parser.error("give at least one model file")
    from slipstream.models.machine import cpu_flags

    today = datetime.date.today().isoformat()
    results = {
        "benchmark": "memory", "date": today, "unit": "MiB", "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}", "libc": " ".join(platform.libc_ver()),
        "llama_cpp_python": version("llama-cpp-python"),
        "cpu_flags": sorted(f for f in cpu_flags() if f.startswith(("avx", "amx", "asimd", "sve", "i8mm"))),
        "results": [measure(case) for case in cases(arguments.models)],
    }  # fmt: skip
    text = json.dumps(results, indent=1)
    if arguments.out:
        arguments.out.mkdir(parents=True, exist_ok=True)
        (arguments.out / f"memory-{today}.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
