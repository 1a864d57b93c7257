"""An output that takes nothing more is said in a sentence on the error stream."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_full_disk_is_said_in_one_sentence(as_json: tuple[str, ...]) -> None:
    words = [sys.executable, "-m", "sartor", "gemm", "512", "512", "512", "--gpu", "a100", *as_json]
    with FULL.open("w") as full:
        ran = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stderr == "sartor: output=stdout: must have room: the disk is full\n"
