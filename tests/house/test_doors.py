"""Doors agree: whatever prices a run gives it the same seconds and bytes, to the last digit within a process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from doors import DENSE, DOORS, MIXTURES, Asked, contradictions, frozen_contradictions, runs
from effort import LONG, times
from sartor.cli import run
from sartor.model.zoo import model_entry

NAMES = st.just(tuple(DOORS)) if LONG else st.sets(st.sampled_from(tuple(DOORS)), min_size=1, max_size=2).map(tuple)
"""Doors that are tried for a run: all in the long run, else one or two."""


@pytest.mark.slow
@settings(
    max_examples=times(60, 2000),
    derandomize=not LONG,  # the long run looks for more
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
)
@given(asked=runs(), names=NAMES)
def test_every_door_gives_a_run_the_same_seconds_and_bytes(
    tmp_path_factory: Any, asked: Asked, names: tuple[str, ...]
) -> None:
    assert contradictions(asked, names, tmp_path_factory.mktemp("doors")) == []


@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("bits", [16, 4])
def test_a_frozen_base_has_one_price(model: str, bits: int, tmp_path: Path) -> None:
    words = {"num_devices": 8, "global_batch_size": 32, "seq_len": 1024, "framework": "megatron", "dtype": "bf16"}
    asked = Asked(model=model, gpu="a100_sxm", words=words)
    assert frozen_contradictions(asked, {"tp": 2, "pp": 1, "frozen_bits": bits}, tmp_path) == []


ONCE_APART = {
    "layers placed in another headroom": (
        "diagnose",
        Asked(
            model="gemma-2-2b",
            gpu="tpu_v4_like",
            words={"headroom": 0.1, "recompute": "none", "microbatch_size": 1, "seq_len": 512, "pp": 2, "tp": 1},
        ),
    ),
    "chunks summed in another order": (
        "grid",
        Asked(
            model="qwen3-30b-a3b",
            gpu="tpu_v4_like",
            words={"num_devices": 16, "global_batch_size": 96, "microbatch_size": 1, "dtype": "fp8", "ep": 1},
        ),
    ),
    "a vocabulary padded as its trainer does": (
        "validate",
        Asked(
            model="gpt2",
            gpu="a100_sxm",
            words={"num_devices": 8, "global_batch_size": 32, "seq_len": 512, "framework": "nemo", "tp": 1, "pp": 1},
        ),
    ),
    "a fact of a trainer's file that no switch states": (
        "restated",
        Asked(
            model="gpt2",
            gpu="a100_sxm",
            words={
                "num_devices": 8,
                "global_batch_size": 32,
                "seq_len": 512,
                "framework": "deepspeed",
                "zero_stage": 2,
            },
        ),
    ),
}


def test_every_model_of_the_law_is_in_the_zoo() -> None:
    assert all(model_entry(name) for name in (*DENSE, *MIXTURES))


@pytest.mark.parametrize("case", ONCE_APART)
def test_doors_that_were_apart_agree(case: str, tmp_path: Path) -> None:
    name, asked = ONCE_APART[case]
    assert contradictions(asked, (name,), tmp_path) == []


@pytest.mark.parametrize("command", [("estimate",), ("plan",), ("diagnose", "run.log", "--model")])
def test_a_batch_in_tokens_is_asked_in_sequences(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "gpt2", "--global-batch-size", "4M"]) == 2
    assert "nearest: 1024, if tokens at seq_len=4096 were meant" in capsys.readouterr().err
