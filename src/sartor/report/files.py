"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sartor.errors import InputError


def write_atomic(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write ``data`` to ``path``: a reader sees the old file or the new one, never a part of it.

    The bytes go to a temporary file next to the target, which is then renamed. Parent folders are created.
    A target that cannot be written is an :class:`~sartor.errors.InputError`.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise _cannot_write(target, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o666 & ~_umask())
        Path(name).replace(target)
    except OSError as error:
        raise _cannot_write(target, error) from error
    finally:
        Path(name).unlink(missing_ok=True)
    return target


def _umask() -> int:
    """The process's file mode mask, because mkstemp makes files that only the owner can read."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cannot_write(target: Path, error: OSError) -> InputError:
    return InputError("file", str(target), f"must be writable ({error.strerror or error})")
