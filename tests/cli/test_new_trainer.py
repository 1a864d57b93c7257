"""Adding a trainer is one file, and every command takes it (CONTRIBUTING, "Add a trainer").

``package`` is a copy of sartor with the trainer of ``ADDED``, as a contributor would write it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ADDED = '''
"""Acme's trainer: Megatron's, but it pads the vocabulary to multiples of 4,096 and shards no optimizer states."""

from dataclasses import replace

from sartor.step.trainers.megatron import MEGATRON

ACME = replace(
    MEGATRON,
    name="acme",
    title="Acme",
    aliases=("acme-train",),
    words=("acme",),
    vocab_multiple=4096,
    usual_zero_stage=0,
    launchable=False,
    source="made up for a test",
)
'''
QUESTION = "llama-3.2-1b --gpu h100 --num-devices 8 --global-batch-size 64 --seq-len 2048 --framework acme-train --json"


@pytest.fixture(scope="module")
def package(source_copy: Path) -> Path:
    (source_copy / "sartor" / "step" / "trainers" / "acme.py").write_text(ADDED.lstrip(), encoding="utf-8")
    return source_copy


@pytest.mark.parametrize("command", ["estimate", "lint", "plan"])
def test_every_command_takes_a_new_trainer(package: Path, command: str) -> None:
    words = QUESTION.replace("--gpu h100", "--cluster dgx-h100") if command == "plan" else QUESTION
    environment = {**os.environ, "PYTHONPATH": str(package)}
    arguments = [sys.executable, "-m", "sartor", command, *words.split()]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: lint has findings
    run = json.loads(done.stdout)["run"]
    assert run["framework"]["origin"] == "stated"
    assert "acme" in run["framework"]["value"]
    if command != "lint":
        assert "vocabulary of 128256 padded to 131072" in done.stdout
