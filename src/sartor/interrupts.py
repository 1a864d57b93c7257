"""Ctrl-C where work can be left, and nowhere else.

The command line listens (`listen`): an interrupt becomes ``KeyboardInterrupt``, but never while a library loads, where
C code turns it into other errors. Long work that has something to show for itself runs in a `patient` block: the first
Ctrl-C is only noted, and the work looks for it (`point`, `asked`) where it can stop; a second one is not waited for.
Without either, as in a notebook, Python's own handler stays.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

AGAIN_S = 0.002
"""How soon an interrupt that came while a library loads is raised after it is loaded."""


@dataclass(slots=True)
class _Presses:
    """Ctrl-C in this process; signals are the process's, so this is too."""

    count: int = 0
    patient: bool = False


_presses = _Presses()


def listen() -> None:
    """Take Ctrl-C for this process, with nothing pressed so far. Only the main thread of a process may do so."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    _presses.count = 0
    signal.signal(signal.SIGINT, _pressed)
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, _once_more)
    sys.unraisablehook = _unraisable


def deaf() -> None:
    """Take no Ctrl-C any more: all is done, or it is another process's to answer."""
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
    """A place where work can be left: raises ``KeyboardInterrupt`` if Ctrl-C was pressed."""
    if asked():
        raise KeyboardInterrupt


@contextmanager
def patient() -> Iterator[None]:
    """Work that looks for Ctrl-C itself; a second one ends it wherever it is."""
    before, _presses.patient = _presses.patient, True
    try:
        yield
    finally:
        _presses.patient = before


@contextmanager
def unheard() -> Iterator[None]:
    """Start processes that do not hear Ctrl-C before they can say so themselves; what comes meanwhile comes after."""
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
    if _presses.count > 2 and _loading(frame):  # a library that takes its time, and a user who does not
        os.write(2, b"interrupted\n")
        os._exit(128 + signal.SIGINT)
    _once_more(number, frame)


def _once_more(number: int, frame: FrameType | None) -> None:
    if _loading(frame) and hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
        return
    raise KeyboardInterrupt


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """Python drops an error raised while an object is cleared away, and prints it: an interrupt is raised again."""
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
