"""The script that measures a whole machine, dry: its command lines run, on a device whose clock is a number."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.fake_device import FACTS, FakeDevice
from sartor.cli import run

RECORDER = """#!/bin/sh
shift 2
[ $# -eq 0 ] || { echo "$*" >>"$CALLS"; echo '{}'; }
"""


def calls_of(script: Path, folder: Path, parts: str) -> list[list[str]]:
    """Every command line of ``sartor`` that the script has, in order; nothing runs."""
    recorder, calls = folder / "python", folder / "calls"
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    told = {**os.environ, "PYTHON": str(recorder), "CALLS": str(calls), "SHARE": "2"}
    subprocess.run(["sh", str(script), parts, str(folder / "records")], env=told, check=True, capture_output=True)
    return [line.split() for line in calls.read_text().splitlines()]


@pytest.mark.slow
def test_the_device_script_s_command_lines_run_on_a_fake_clock(
    tmp_path: Path, repo_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Otherwise a renamed option or suite would first show on a machine lent for fifteen minutes."""
    fake = FakeDevice(facts=replace(FACTS, gpu="h200_sxm", num_sms=132, memory_bytes=140e9, l2_bytes=50e6))
    monkeypatch.setattr("sartor.bench.torch_device.import_torch", lambda: None)
    monkeypatch.setattr("sartor.bench.torch_device.open_device", lambda *args, **named: fake)
    calls = calls_of(repo_dir / "lab" / "measure_on_device.sh", tmp_path, "1,2,3,4,5,6,short")
    assert {"quick", "random", "alignment", "waves", "full", "layer", "model", "heads", "parity"} <= {
        w for c in calls for w in c
    }
    for call in calls:
        if "parity" not in call:  # trains two models: PyTorch alone can
            assert run(call) == 0, call
            capsys.readouterr()
