"""What a solver writes to stdout is not the answer's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sartor.schedules.milp import silently

CHILD = """
import ctypes, os
from sartor.schedules.milp import silently
def noisy(word):
    ctypes.CDLL(None).puts(b"from C")
    os.write(1, b"from the kernel")
    return word
print("before")
print(silently(noisy, word="answer"))
"""


def test_nothing_a_call_writes_reaches_stdout() -> None:
    ran = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert ran.stdout == "before\nanswer\n"


def test_stdout_is_there_again_after_an_error() -> None:
    def fails() -> None:
        raise ValueError("no")

    before = os.fstat(1)
    with pytest.raises(ValueError, match="no"):
        silently(fails)
    assert os.path.sameopenfile(1, 1)
    assert os.fstat(1).st_ino == before.st_ino
