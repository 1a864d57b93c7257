"""A step as uncompiled PyTorch runs it: more kernels, each launched by the host."""

from __future__ import annotations

import numpy as np
import pytest

import sartor
from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.hardware.catalog import load_gpu
from sartor.operators import MemoryBound
from sartor.records.targets import model_work
from sartor.validate.predictions import _cost_of


@pytest.mark.parametrize("gpu", ["a100", "h100", "v100", "mi210"])
@pytest.mark.parametrize("phase", ["train", "prefill"])
def test_eager_is_never_faster_and_says_what_it_takes_for_granted(gpu: str, phase: str) -> None:
    plan = {"num_devices": 64, "tp": 1, "pp": 1, "cp": 1, "zero_stage": 1, "recompute": "none"}
    words = {"phase": phase, "seq_len": 512, "microbatch_size": 1, **(plan if phase == "train" else {"tp": 2})}
    plain = sartor.estimate("llama-3-8b", gpu, **words)
    eager = sartor.estimate("llama-3-8b", gpu, **words, eager=True)
    fewer, more = (
        sum(op.count * op.kernels for op in each.graph.operators if isinstance(op, MemoryBound))
        for each in (plain, eager)
    )
    assert fewer < more
    assert plain.microbatch.time_s < eager.microbatch.time_s
    assert plain.microbatch.matmul_flops == eager.microbatch.matmul_flops
    assert any(each.startswith("eager:") for each in eager.question.assumptions)


def test_a_users_eager_pass_is_what_validate_prices() -> None:
    gpu = load_gpu("v100_pcie_32gb")
    words = {"model": "gpt2", "phase": "forward", "dtype": "float32", "part": "total"}
    work = model_work(words, {"batch": np.array([4]), "seq": np.array([512])})
    own = sartor.estimate(
        "gpt2", gpu, phase="prefill", seq_len=512, microbatch_size=4, dtype="fp32", attention="unfused", eager=True
    )
    assert work.eager
    assert [op.name for op in work.operators] == [op.name for op in own.graph.operators]
    known = load_calibration(gpu)
    for op, cost in zip(work.operators, own.microbatch.costs, strict=True):
        if isinstance(op, MemoryBound):
            assert _cost_of(op, work, gpu, known, Clock.BOOST).time_s == pytest.approx(cost.time_s), op.name
