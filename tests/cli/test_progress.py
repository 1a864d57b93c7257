"""A command that takes long says on the terminal how far it is, and nothing of it enters any other output."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys

import pytest

from sartor.cli.common import progress_text
from sartor.interrupts import activity, counted, report

AT_ONCE = """
from sartor.cli import common, main
common.LONG_S, common.AGAIN_S = 0.0, 0.01
main()
"""
SEARCH = ["plan", "llama-3.1-8b", "--cluster", "dgx-h100", "--num-devices", "64", "--global-batch-size", "512"]
LINE = "\r\x1b[2K"


def test_the_time_left_follows_from_the_share_that_is_done() -> None:
    report("pricing plans", 0, 8)
    report("pricing plans", 2, 8)
    assert progress_text(12, activity.begin + 3) == "pricing plans, 25%, 12 s, about 9 s left"
    report("scheduling", left_s=20)
    assert progress_text(3, activity.end - 15) == "scheduling, 3 s, at most 15 s left"
    report("comparing kernels")
    assert progress_text(4, activity.begin) == "comparing kernels, 4 s"
    first, *_ = counted("abcd", "counting")
    assert (first, progress_text(1, activity.begin).partition(",")[0]) == ("a", "counting")


def _everything(terminal: int) -> str:
    """What a terminal has shown; one read of it is 4 KiB at most, and after the last it fails."""
    shown = b""
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 1 << 16):
            shown += part
    os.close(terminal)
    return shown.decode()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is another thing elsewhere")
def test_a_terminal_sees_how_far_the_work_is_and_a_pipe_sees_nothing() -> None:
    ours, theirs = pty.openpty()
    ran = subprocess.run([sys.executable, "-c", AT_ONCE, *SEARCH, "--json"], stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    seen = _everything(ours)
    assert ran.returncode == 0
    assert ran.stdout.startswith(b"{")
    assert f"{LINE}pricing plans, " in seen
    assert seen.endswith(LINE), "the line is wiped at the end"
    assert b"\x1b" not in ran.stdout
    quiet = subprocess.run([sys.executable, "-c", AT_ONCE, *SEARCH, "--json"], capture_output=True)
    assert (quiet.stderr, quiet.returncode) == (b"", 0)


@pytest.mark.skipif(os.name != "posix", reason="terminals are another thing elsewhere")
def test_a_page_that_waits_for_its_readers_is_not_work() -> None:
    ours, theirs = pty.openpty()
    server = subprocess.Popen([sys.executable, "-c", AT_ONCE, "page", "--port", "0"], stderr=theirs)
    os.close(theirs)
    seen = os.read(ours, 1 << 12)
    while b"open http://" not in seen:
        seen += os.read(ours, 1 << 12)
    server.kill()
    server.wait()
    os.close(ours)
    assert b"working" not in seen
