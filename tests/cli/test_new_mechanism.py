"""Adding a mechanism of the step: one file and its line in the list, and every answer names it (CONTRIBUTING, "Add a
mechanism").

``package`` is a copy of sartor with the mechanism of ``ADDED``, as a contributor would write it; the tests ask it for a
plan as text and JSON, with a trace of its step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ADDED = '''
"""Coffee: every step waits a fifth of a second for each pipeline stage."""

from sartor.step.mechanisms.mechanism import Mechanism
from sartor.step.mechanisms.mechanism import StepPart


def _at_step(s, _):
    return 0.2 * s.columns["pp"]


COFFEE = Mechanism(
    name="coffee",
    part=StepPart(key="coffee_s", words="coffee breaks"),
    fields=("pp",),
    event="a coffee break",
    at_step=_at_step,
)
'''
QUESTION = "plan llama-3.2-1b --cluster dgx-h100 --num-devices 8 --global-batch-size 64 --seq-len 2048 --fix pp=2,tp=2"


@pytest.fixture(scope="module")
def package(source_copy: Path) -> Path:
    folder = source_copy / "sartor" / "step" / "mechanisms"
    (folder / "coffee.py").write_text(ADDED.lstrip(), encoding="utf-8")
    listed = (folder / "__init__.py").read_text(encoding="utf-8")
    listed = listed.replace("    WAITING,", "    COFFEE,\n    WAITING,")
    first = "from sartor.step.mechanisms.compute"
    listed = listed.replace(first, f"from sartor.step.mechanisms.coffee import COFFEE\n{first}")
    (folder / "__init__.py").write_text(listed, encoding="utf-8")
    return source_copy


def asked(package: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(package), "SARTOR_DEBUG": "1", "COLUMNS": "150"}
    command = [sys.executable, "-m", "sartor", *QUESTION.split(), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_mechanism_is_in_json_and_trace(package: Path, tmp_path: Path) -> None:
    best = json.loads(asked(package, "--json", "--trace", str(tmp_path / "step.json")))["best"]
    assert best["time"]["coffee_s"] == pytest.approx(0.4)
    assert sum(best["time"].values()) == pytest.approx(best["step_s"], rel=1e-9)
    events = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))["traceEvents"]
    breaks = [event["dur"] for event in events if event["name"] == "a coffee break"]
    assert breaks == pytest.approx([0.4e6, 0.4e6])
    ends = [event["ts"] + event["dur"] for event in events if event["ph"] == "X"]
    assert max(ends) == pytest.approx(1e6 * best["step_s"], rel=1e-6)


def test_a_new_mechanism_is_in_the_text(package: Path) -> None:
    assert "coffee breaks" in asked(package)
