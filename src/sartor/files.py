"""Atomic file writes that follow links and keep the file's mode. Only the edges write files; the core does not."""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sartor.errors import InputError, MissingExtraError

MODE = 0o666
"""Mode of a new file, before the umask."""
_STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/")


def write_atomic(path: str | os.PathLike[str], data: bytes, *, field: str = "file") -> Path:
    """Write ``data`` to ``path``: a reader sees the old file or the new one, never a part of it.

    A link stays a link; its target is written and keeps its mode and owner. Parent folders are created. Raises
    `InputError` for anything that is not a regular file or cannot be written, except that ``/dev/stdout``,
    ``/dev/stderr`` and ``/dev/fd/N`` are written as streams, and ``/dev/null`` accepts everything.
    """
    write_together([(Path(path), data, MODE)], field=field)
    return Path(path)


def write_together(files: Iterable[tuple[Path, bytes, int]], *, field: str = "file") -> None:
    """Write several files (path, bytes, mode if new): all are complete in temporary files before the first is
    renamed."""
    waiting: list[tuple[Path, Path, Path]] = []
    try:
        for path, data, mode in files:
            check_writable(path, field=field)
            with _reported(field, path):
                stream = _stream(path)
                if stream is not None:
                    _pour(stream, data)
                else:
                    target = Path(os.path.realpath(path))
                    waiting.append((_beside(target, data, mode), target, path))
        for part, target, path in waiting:
            with _reported(field, path):
                part.replace(target)
                _sync(target.parent)
    finally:
        for part, _, _ in waiting:
            part.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str], *, field: str = "file") -> None:
    """Raise `InputError` for a path that cannot be written; writes nothing. To be called before long work."""
    path = Path(path)
    with _reported(field, path):
        if _stream(path) is not None:
            return
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise InputError(field, str(path), "is a folder; name a file in it")
        if target.is_symlink():
            raise InputError(field, str(path), "is a link that leads to itself")
        if target.exists() and not target.is_file():
            must = f"is a {_kind(target.stat().st_mode)}; must be a regular file or a new name"
            raise InputError(field, str(path), must)
        place = target if target.exists() else _nearest(target.parent)
        if place != target and not place.is_dir():
            raise InputError(field, str(path), f"must be writable ({place} is not a folder)")
        if not os.access(place, os.W_OK) or (place == target and not os.access(target.parent, os.W_OK)):
            raise InputError(field, str(path), f"must be writable ({place} may only be read)")


@contextmanager
def _reported(field: str, path: Path) -> Iterator[None]:
    """Turn an ``OSError`` into an `InputError`; a closed pipe is not the fault of the path and stays as it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(field, str(path), f"must be writable ({error.strerror or error})") from error


def _stream(path: Path) -> int | None:
    """The file descriptor that a name like ``/dev/stdout`` stands for; None for a file."""
    name = str(path)
    if name in _STREAMS:
        return _STREAMS[name]
    if name.startswith(_DESCRIPTORS) and path.name.isdigit():
        return int(path.name)
    with suppress(OSError):
        status = path.stat()
        if os.path.samestat(status, Path(os.devnull).stat()):
            return _NOWHERE
        for descriptor in _STREAMS.values():  # a link to /dev/stdout, used for logs in containers
            if os.path.samestat(status, os.fstat(descriptor)):
                return descriptor
    return None


_NOWHERE = -1


def _pour(descriptor: int, data: bytes) -> None:
    if descriptor == _NOWHERE:
        return
    if descriptor in _STREAMS.values():
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(data)


def _beside(target: Path, data: bytes, mode: int) -> Path:
    """A complete temporary file next to ``target``, with the target's mode and owner."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear(target)
    prefix = f".{target.name[:40]}.{os.getpid()}."
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if target.exists():
                status = target.stat()
                mode = stat.S_IMODE(status.st_mode)
                with suppress(PermissionError):
                    os.chown(name, status.st_uid, status.st_gid)
            else:
                mode &= ~_umask()
            Path(name).chmod(mode)
            os.fsync(file.fileno())
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def _clear(target: Path) -> None:
    """Remove temporary files left by processes that were killed while writing."""
    name = re.compile(re.escape(f".{target.name[:40]}.") + r"(\d+)\.[^.]*\.part")
    for entry in target.parent.iterdir():
        match = name.fullmatch(entry.name)
        if match and not _is_alive(int(match[1])):
            entry.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _sync(folder: Path) -> None:
    """Make a rename survive a power failure, where the system can sync a folder."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _nearest(folder: Path) -> Path:
    """The folder itself, or its first existing parent."""
    return next((ancestor for ancestor in (folder, *folder.parents) if ancestor.exists()), folder)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "named pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
    return kinds.get(stat.S_IFMT(mode), "special file")


def _umask() -> int:
    """The process's umask, because mkstemp makes files that only the owner can read."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def pyarrow(feature: str) -> tuple[Any, Any]:
    """pyarrow and its module of Parquet files. Raises ``MissingExtraError`` for ``feature``."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError(feature, "data") from None
    return pyarrow, pyarrow.parquet
