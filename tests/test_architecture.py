"""The shape of the code: arrows, sizes, a light import, and nothing of one machine in the repository."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "slipstream"
# Imports point to the same or a lower floor. "opening" and the like are the engine's own files.
FLOORS = {
    **dict.fromkeys(("errors", "files"), 0),
    "core": 1,
    **dict.fromkeys(("drafters", "models", "text", "hub", "data"), 2),
    **dict.fromkeys(("engine", "generation", "opening", "drafting", "pricing", "shelf", "worker", "aio"), 3),
    **dict.fromkeys(("serve", "advise"), 4),
    **dict.fromkeys(("cli", "__main__"), 5),
}
STRANGERS = [{"drafters", "models"}]  # on one floor, but not acquainted
FILES = sorted(SRC.rglob("*.py"))


def part(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Modules that a file names, inside functions too."""
    package = ["slipstream", *path.relative_to(SRC).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names if name == "slipstream")


def inner(path: Path) -> set[str]:
    names = {name.split(".")[1] for name in imports(path) if name.startswith("slipstream.")}
    return names - {"__version__"}


def test_the_files_are_where_this_test_looks() -> None:
    assert len(FILES) > 30 and {part(p) for p in FILES} >= {"core", "drafters", "models", "engine"}
    assert inner(SRC / "core" / "loop.py") == {"core", "errors"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_point_one_way(path: Path) -> None:
    me = part(path)
    if me == "__init__":  # lends its names to users, lazily
        return
    assert me in FLOORS, f"{me} has no floor yet: give it one here and in DESIGN.md"
    for other in inner(path):
        assert other in FLOORS, f"{path.name} imports slipstream.{other}, which has no floor"
        assert FLOORS[other] <= FLOORS[me], f"{me} must not import {other}"
        assert {me, other} not in STRANGERS, f"{me} and {other} must not know each other"


def test_one_package_touches_llama_cpp() -> None:
    users = {p for p in FILES if any(n.split(".")[0] == "llama_cpp" for n in imports(p))}
    assert users and {p.parent.name for p in users} == {"llamacpp"}


def test_the_core_needs_numpy_and_nothing_else() -> None:
    for path in (p for p in FILES if part(p) in ("core", "errors")):
        for name in imports(path):
            top = name.split(".")[0]
            assert top in sys.stdlib_module_names or top in ("numpy", "slipstream"), f"{path.name} imports {name}"


def test_the_loop_knows_no_drafter_and_no_architecture_by_name() -> None:
    for path in (SRC / "core").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                text = ast.unparse(node)
                assert not re.search(r"'(suffix|model|llama|gemma|qwen\d*|mamba)'", text), f"{path.name}: {text}"


def test_import_slipstream_is_light() -> None:
    code = "import sys, slipstream; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "slipstream" in loaded
    assert not {"numpy", "llama_cpp", "scipy", "jinja2", "rich", "typer", "psutil", "huggingface_hub"} & set(loaded)


def test_public_names_are_there() -> None:
    import slipstream

    for name in slipstream.__all__:
        assert getattr(slipstream, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = slipstream.nonsense


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_files_and_functions_are_small(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 400, f"{path.name} has more than 400 lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 60, f"{path.name}: {node.name} has {length} lines"


def tracked() -> list[Path]:
    """Files that git tracks, or would: new ones that are not ignored."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git repository here")
    return [ROOT / name for name in found if name and (ROOT / name).is_file()]


# Put together from parts, so that this file does not match itself.
MACHINE = re.compile("(?<![\\w.~$}*-])/(" + "|".join(["wor" + "k", "roo" + "t", "hom" + "e/\\w+", "tm" + "p"]) + ")\\b")
INDEX = re.compile(
    "https?://[^\\s\"'<>]*("
    + "|".join(["py" + "pi", "python" + "hosted", "anacon" + "da", "npm" + "js", "crates\\.io", "/simp" + "le"])
    + ")"
)


def matches(pattern: re.Pattern[str]) -> list[str]:
    hits = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        hits += [
            f"{path.relative_to(ROOT)}:{i}: {line.strip()}"
            for i, line in enumerate(text.split("\n"), 1)
            if pattern.search(line)
        ]
    return hits


def test_no_path_of_one_machine_in_the_repository() -> None:
    assert MACHINE.search("open('/" + "tmp/x')") and MACHINE.search("/" + "home/me") and not MACHINE.search("src/work")
    assert matches(MACHINE) == []


def test_no_package_registry_s_address_in_the_repository() -> None:
    assert INDEX.search("https://" + "py" + "pi.org/simple") and not INDEX.search("https://example.org")
    assert matches(INDEX) == []


def test_the_lock_file_is_not_tracked() -> None:
    assert "uv.lock" not in {p.name for p in tracked()}
