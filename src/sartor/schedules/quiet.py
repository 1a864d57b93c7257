"""Silence HiGHS, which writes lines to stdout regardless of its options (SciPy 1.17: its sub-solver does)."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def silently(call: Callable[..., Any], **words: Any) -> Any:
    """``call(**words)`` with its output to file descriptor 1 discarded."""
    with _nowhere():
        return call(**words)


@contextmanager
def _nowhere() -> Iterator[None]:
    try:
        kept = os.dup(1)
    except OSError:  # no stdout at all
        yield
        return
    if sys.stdout is not None:
        sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        _flush_c()
        os.dup2(kept, 1)
        os.close(nowhere)
        os.close(kept)


def _flush_c() -> None:
    """Flush C's output buffer, which also holds output of the call."""
    try:
        ctypes.CDLL(None).fflush(None)
    except (AttributeError, OSError, TypeError):  # a platform without a default C library
        return
