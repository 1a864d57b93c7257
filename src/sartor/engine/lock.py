"""One writer at a time: a lock file beside the study, released when its process ends in any way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sartor.errors import InputError


@contextmanager
def study_lock(path: Path) -> Iterator[None]:
    """Lock the study for this process. Raises ``InputError`` if another process has locked it."""
    beside = _beside(path)
    try:
        handle = _locked(beside)
    except OSError as error:
        if error.errno in _TAKEN:
            who = beside.read_text(errors="replace").strip() or "another process"
            must = f"is being written by {who}; wait for it, stop it, or name another file"
            raise InputError("study", str(path), must) from None
        raise InputError("study", str(path), f"cannot be locked ({error.strerror})") from None
    try:
        yield
    finally:
        beside.unlink(missing_ok=True)
        os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether a process is writing the study; the lock file of a killed one stays, but nobody has locked it."""
    try:
        handle = os.open(_beside(path), os.O_RDWR)
    except OSError:
        return False
    try:
        _lock(handle)
    except OSError as error:
        return error.errno in _TAKEN
    finally:
        os.close(handle)
    return False


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _locked(path: Path) -> int:
    """An open file that this process has locked, and that is still the file at ``path``."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(handle)
            if path.exists() and os.fstat(handle).st_ino == path.stat().st_ino:
                os.ftruncate(handle, 0)
                os.write(handle, f"process {os.getpid()}".encode())
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the previous holder has removed this file: try again


try:
    import fcntl
    from errno import EACCES, EAGAIN

    _TAKEN = {EACCES, EAGAIN}

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

except ImportError:  # pragma: no cover - Windows
    import msvcrt
    from errno import EACCES, EDEADLK

    _TAKEN = {EACCES, EDEADLK}

    def _lock(handle: int) -> None:
        os.lseek(handle, 1 << 20, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
