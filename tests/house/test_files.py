"""Files appear whole or not at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sartor.errors import InputError
from sartor.files import check_writable, write_atomic, write_together


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


def refused(path: Path) -> str:
    """The sentence about a path; the check before the work says the same as the write."""
    with pytest.raises(InputError) as early:
        check_writable(path, field="--out")
    with pytest.raises(InputError) as late:
        write_atomic(path, b"new", field="--out")
    assert str(early.value) == str(late.value)
    return str(early.value)


def test_what_is_no_regular_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert "is a folder" in refused(tmp_path / "folder")
    os.mkfifo(tmp_path / "pipe")
    assert "is a named pipe" in refused(tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "circle").symlink_to("circle")
    assert "leads to itself" in refused(tmp_path / "circle")
    if Path("/dev/full").exists():
        assert "is a device" in refused(Path("/dev/full"))


def test_a_parent_that_is_a_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "must be writable" in refused(tmp_path / "file" / "page.html")


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for target in (tmp_path / "there" / "old.json", tmp_path / "there" / "new.json"):
        link = tmp_path / f"link-{target.name}"
        link.symlink_to(Path("there") / target.name)
    (tmp_path / "there" / "old.json").write_bytes(b"old")
    for name in ("old.json", "new.json"):
        write_atomic(tmp_path / f"link-{name}", b"new")
        assert (tmp_path / f"link-{name}").is_symlink()
        assert (tmp_path / "there" / name).read_bytes() == b"new"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    target = tmp_path / "secret.json"
    target.write_bytes(b"old")
    target.chmod(mode)
    write_atomic(target, b"new")
    assert stat.S_IMODE(target.stat().st_mode) == mode


def test_of_several_files_none_takes_its_name_before_all_are_complete(tmp_path: Path) -> None:
    (tmp_path / "last").mkdir()
    files = [(tmp_path / name, b"new", 0o666) for name in ("first", "last")]
    with pytest.raises(InputError, match="is a folder"):
        write_together(files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last"]


@pytest.mark.skipif(os.name != "posix", reason="streams have names in a file system on POSIX only")
def test_streams_and_nowhere_are_written_and_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to("/dev/stdout")
    names = ["/dev/stdout", "/dev/fd/1", str(tmp_path / "log"), "/dev/null"]
    code = f"from sartor.files import *; [write_atomic(name, b'x') for name in {names}]"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert ran.stdout == b"xxx"
    with (tmp_path / "redirected").open("wb") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert (tmp_path / "redirected").read_bytes() == b"xxx"
    assert Path("/dev/null").is_char_device()
