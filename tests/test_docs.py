"""What the documents show works: the example drafter runs as it stands, also as a plug-in."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from slipstream.core.policy import Fixed
from slipstream.engine import Engine
from slipstream.models.toy import ToyModel, ToyTokenizer, markov

ROOT = Path(__file__).parent.parent
TOKENIZER = ToyTokenizer([bytes([65 + i]) for i in range(16)])


def example() -> str:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "drafters.md").read_text(), re.DOTALL)[0]


def test_the_example_drafter_keeps_the_text_and_guesses_some_of_it() -> None:
    namespace: dict[str, object] = {}
    exec(example(), namespace)
    model = ToyModel(markov(16, 1, spread=4.0), 16)
    engine = Engine(model, TOKENIZER, namespace["EchoDrafter"](), Fixed(4))  # type: ignore[operator]
    plain = engine.generate("ABCD", max_tokens=80, speculative=False)
    drafted = engine.generate("ABCD", max_tokens=80)
    assert drafted.ids == plain.ids
    assert drafted.stats.accepted > 0


def test_the_example_is_about_thirty_lines() -> None:
    assert len(example().strip().splitlines()) <= 36


def test_a_plug_in_is_found_by_its_entry_point(tmp_path: Path) -> None:
    (tmp_path / "my_echo.py").write_text(example())
    info = tmp_path / "my_echo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-echo\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[slipstream.drafters]\necho = my_echo:EchoDrafter\nbad = my_echo:Nothing\n")
    code = (
        "from slipstream import drafters\n"
        "from slipstream.errors import SlipstreamError\n"
        "print(drafters.names(), drafters.create('echo').name)\n"
        "for name in ('bad', 'ecoh'):\n"
        "    try:\n        drafters.create(name)\n"
        "    except SlipstreamError as e:\n        print(e.message, '|', e.hint)\n"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(tmp_path)}
    )
    assert "['bad', 'echo', 'predicted', 'recycle', 'suffix'] echo" in child.stdout
    assert "the drafter bad (my_echo:Nothing) fails to load" in child.stdout
    assert "unknown drafter: ecoh | did you mean echo?" in child.stdout


def test_the_readmes_say_the_same() -> None:
    """Both languages show the same commands, code and links."""
    english, chinese = ((ROOT / name).read_text() for name in ("README.md", "README.zh-CN.md"))

    def skeleton(text: str) -> tuple[list[str], list[str], int]:
        commands = re.findall(r"^(?:slipstream|scripts/)\S* \S+(?: -m \S+)?", text, re.MULTILINE)
        links = re.findall(r"\]\((\S+?)\)", text)
        return commands, sorted(x for x in links if not x.startswith("README")), text.count("\n## ")

    assert skeleton(english) == skeleton(chinese)


def test_documents_are_finished_and_their_links_lead_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "README.md"]
    assert len(documents) > 14
    for document in documents:
        text = document.read_text()
        assert "@@" not in text, document
        for link in re.findall(r"\]\(([^)#]+)", text):
            assert "://" in link or (document.parent / link).exists(), f"{document.relative_to(ROOT)}: {link}"
