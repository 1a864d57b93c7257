"""Files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from sartor.errors import InputError
from sartor.report.files import write_atomic


def test_a_file_is_written_with_its_folders(tmp_path: Path) -> None:
    path = write_atomic(tmp_path / "a" / "b.html", b"whole")
    assert path.read_bytes() == b"whole"
    assert [p.name for p in path.parent.iterdir()] == ["b.html"]


def test_an_old_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    write_atomic(target, b"old")
    write_atomic(target, b"new")
    assert target.read_bytes() == b"new"


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "page.html"
    write_atomic(target, b"old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="No space left"):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_target_that_is_a_folder_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    with pytest.raises(InputError, match="must be writable"):
        write_atomic(tmp_path / "page.html", b"new")


def test_a_parent_that_is_a_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="must be writable"):
        write_atomic(tmp_path / "file" / "page.html", b"new")
