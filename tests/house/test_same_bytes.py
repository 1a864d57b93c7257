"""The same question gives the same bytes, whatever order Python's sets have and however many threads there are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
CONFIG = "examples/llama-3-8b/config.json"
COMMANDS = [
    ["estimate", CONFIG, "--gpu", "h100"],
    ["lint", CONFIG, "--gpu", "h100", "--tp", "8", "--fail-on", "never"],
    ["advise", CONFIG, "--gpu", "a100"],
    ["plan", "gpt2-medium", "--cluster", "dgx-a100", "--num-devices", "16", "--global-batch-size", "64"],
    ["schedule", "examples/schedule/decoder_backward.json", "--solver", "greedy"],
    ["catalog", "rules"],
]
CLOCK = ("solve_s", "wall_s", "evaluated_per_s")


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_the_bytes_hang_on_the_question_alone(words: list[str]) -> None:
    answers = {answer(words, seed, threads) for seed, threads in (("0", "1"), ("1", "4"), ("4242", "2"))}
    assert len(answers) == 1


def answer(words: list[str], seed: str, threads: str) -> str:
    counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
    environment = {**os.environ, **counts, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-m", "sartor", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPO, env=environment)
    return "\n".join(line for line in done.stdout.splitlines() if not any(f'"{name}"' in line for name in CLOCK))
