"""``kill -9`` at any moment: every file is the old one or the new one, and the same command then gives the same answer.

The program kills itself at a given one of its own steps, so no clock is involved; half of the moments lie where files
are written."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from effort import times
from records.made_tables import gemm_rows, write_csv
from traces.kineto_made import Made, trace

REPO = Path(__file__).parents[2]
KILLED = """
import os, signal, sys

only, left = sys.argv.pop(1), int(sys.argv.pop(1))
steps = {"": 0, only: 0}
def count(frame, event, argument):
    steps[""] += 1
    if only and only in frame.f_code.co_filename:
        steps[only] += 1
    if steps[only] == left:
        os.kill(os.getpid(), signal.SIGKILL)

import sartor.cli
if left:
    sys.setprofile(count)
try:
    sartor.cli.main()
finally:
    sys.setprofile(None)
    print("steps", steps[only], steps[""], file=sys.stderr)
"""
NEVER = -1
"""Of moments: the steps are counted, and the program ends by itself."""
WRITING = str(Path("sartor") / "files.py")
MOMENTS = times(2, 50)
"""Of each command."""
SHAPES = [(m, n, 1024) for m in (16, 128, 512, 2048, 8192) for n in (1024, 4096, 8192)]


def ran(only: str, moment: int, words: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", KILLED, only, str(moment), *words], capture_output=True, cwd=REPO)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(".part")
    }


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="there is no kill -9 elsewhere")
@pytest.mark.parametrize("command", ["plan --write", "calibrate", "diagnose", "estimate --out", "operators --write"])
def test_every_file_is_whole_and_the_answer_the_same(command: str, tmp_path: Path) -> None:
    new, old, folder = tmp_path / "new", tmp_path / "old", tmp_path / "folder"
    records, profile = write_csv(tmp_path / "records.csv", gemm_rows(1.2, shapes=SHAPES)), tmp_path / "trace.json"
    profile.write_text(json.dumps(trace(Made(seed=1, steps=3))))
    written = ["--html", str(folder / "run.html"), "--out", str(folder / "run.json")]
    plan = ["plan", "gpt2-medium", "--cluster", "dgx-a100", "--num-devices", "8", "--overwrite", "--write", "megatron"]
    words = {
        "plan --write": [*plan, str(folder), "--global-batch-size", "32", "--trace", str(folder / "trace.json")],
        "calibrate": ["calibrate", str(records), "--out", str(folder / "c.toml")],
        "diagnose": ["diagnose", str(profile), "--gpu", "h100", "--records", str(folder / "records.csv"), *written],
        "estimate --out": ["estimate", "pythia-70m", "--gpu", "a100", "--out", str(folder / "estimate.json")],
        "operators --write": [
            "operators",
            str(records),
            "--write",
            str(folder / "o.csv"),
            "--out",
            str(folder / "o.json"),
        ],
    }[command]
    counted = ran(WRITING, NEVER, words)
    assert counted.returncode == 0, counted.stderr
    steps = [int(word) for word in counted.stderr.split()[-2:]]
    folder.rename(new)
    old.mkdir()
    for name in contents(new):
        (old / name).write_bytes(b"old")
    draw = random.Random(command)
    for i in range(MOMENTS):
        shutil.copytree(old, folder)
        assert ran((WRITING, "")[i % 2], draw.randint(1, steps[i % 2]), words).returncode == -9
        for name, data in contents(folder).items():
            assert data in (b"old", contents(new)[name]), name
        shutil.rmtree(folder) if i < MOMENTS - 1 else None
    assert ran(WRITING, 0, words).returncode == 0
    assert contents(folder) == contents(new)
    assert not list(folder.glob(".*.part")), "what was left is cleared away"
