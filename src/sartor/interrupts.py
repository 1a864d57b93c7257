"""Ctrl-C, handled only at points where work can be stopped, and how far the work is.

The command line installs a handler (`listen`): an interrupt becomes ``KeyboardInterrupt``, but never during an import,
where C code turns it into other errors. Long work with partial results runs in a `patient` block: the first Ctrl-C is
only recorded, and the work checks for it (`point`, `asked`) where it can stop; a second one interrupts at once.
Otherwise, as in a notebook, Python's own handler stays. Work that may take long says how far it is (`report`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

AGAIN_S = 0.002
"""Delay before an interrupt that came during an import is tried again."""


@dataclass(slots=True)
class _Presses:
    """Ctrl-C state of this process (global, because signals are)."""

    count: int = 0
    patient: bool = False


_presses = _Presses()


def listen() -> None:
    """Handle Ctrl-C in this process, with the count at zero. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    _presses.count = 0
    signal.signal(signal.SIGINT, _pressed)
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, _once_more)
    sys.unraisablehook = _unraisable


def deaf() -> None:
    """Ignore Ctrl-C from now on: the work is done, or another process handles it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if hasattr(signal, "setitimer") and signal.getsignal(signal.SIGALRM) is _once_more:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
        _mask(signal.SIG_UNBLOCK)


def asked() -> bool:
    """Whether Ctrl-C was pressed."""
    return _presses.count > 0


def point() -> None:
    """Raise ``KeyboardInterrupt`` if Ctrl-C was pressed: a point where work can be stopped."""
    if asked():
        raise KeyboardInterrupt


@dataclass(slots=True)
class Activity:
    """What this process is doing: ``done`` of ``total`` (0: unknown) since ``begin``, until ``end`` (None: unknown), in
    seconds of `time.perf_counter`. Global, as a process has one command line."""

    words: str = ""
    done: float = 0.0
    total: float = 0.0
    begin: float = 0.0
    end: float | None = None


activity = Activity()


def report(words: str, done: float = 0.0, total: float = 0.0, *, left_s: float | None = None) -> None:
    """Note what is being done and how far it is: ``done`` of ``total``, or at most ``left_s`` seconds left. The command
    line shows it."""
    now = time.perf_counter()
    if (words, total) != (activity.words, activity.total) or done < activity.done:
        activity.begin = now
    activity.words, activity.done, activity.total = words, done, total
    activity.end = None if left_s is None else now + left_s


def counted(items: Sequence[T], words: str) -> Iterator[T]:
    """The items, with a report of how many are done."""
    for done, item in enumerate(items):
        report(words, done, len(items))
        yield item


@contextmanager
def patient() -> Iterator[None]:
    """Work that checks for Ctrl-C itself; a second Ctrl-C ends it anywhere."""
    before, _presses.patient = _presses.patient, True
    try:
        yield
    finally:
        _presses.patient = before


@contextmanager
def unheard() -> Iterator[None]:
    """Block Ctrl-C while starting processes that cannot ignore it yet; it is delivered afterwards."""
    _mask(signal.SIG_BLOCK)
    try:
        yield
    finally:
        _mask(signal.SIG_UNBLOCK)


def _mask(how: int) -> None:
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(how, {signal.SIGINT})


def _pressed(number: int, frame: FrameType | None) -> None:
    _presses.count += 1
    if _presses.patient and _presses.count == 1:
        return
    if _presses.count > 2 and _loading(frame):  # a slow import, and an impatient user
        os.write(2, b"interrupted\n")
        os._exit(128 + signal.SIGINT)
    _once_more(number, frame)


def _once_more(number: int, frame: FrameType | None) -> None:
    if _loading(frame) and hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        return
    raise KeyboardInterrupt


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """Raise an interrupt again that Python dropped (and would only print) because it came in a finalizer."""
    if not isinstance(what.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(what)
    elif hasattr(signal, "setitimer") and signal.getsignal(signal.SIGALRM) is _once_more:
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)


def _loading(frame: FrameType | None) -> bool:
    """Whether an import is on the stack."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
