"""Rules on a systolic array described by its parts: multiples are the array's side, words are those of the array."""

from __future__ import annotations

import pytest

from sartor.hardware.accelerator import Accelerator
from sartor.hardware.accelerator_catalog import datasheet_of, load_device
from sartor.hardware.gpu import Gpu
from sartor.model.editing import edit
from sartor.model.workload import Workload
from sartor.model.zoo import load_model
from sartor.rules.lint import run_rules
from sartor.rules.rule import Context, Finding


def chip_of(rows: int, cols: int) -> Gpu:
    return datasheet_of(
        Accelerator.from_template(
            name="mine", num_tensor_cores=8, num_vector_cores=8, width=cols, depth=rows, global_buffer_mib=64
        )
    )


def findings(model: str, gpu: Gpu, **fields: int) -> dict[str, Finding]:
    shape = edit(load_model(model), **fields) if fields else load_model(model)
    context = Context.of(Workload(shape=shape, microbatch_size=2, seq_len=1024), gpu)
    return {finding.rule: finding for finding in run_rules(context)}


@pytest.mark.parametrize(("rows", "cols", "side"), [(128, 128, 128), (16, 32, 32), (12, 14, 84), (127, 131, 131)])
def test_a_size_should_fill_both_sides_of_the_array(rows: int, cols: int, side: int) -> None:
    gpu = chip_of(rows, cols)
    assert gpu.matrix_tile == side
    assert f"multiple of {side} " in findings("gpt2-small", gpu)["ragged_vocab"].message


def test_a_head_dimension_is_judged_by_how_much_of_the_array_it_fills() -> None:
    found = findings("pythia-2.8b", chip_of(128, 128))["ragged_head_dim"]
    assert "head_dim=80 fills 62% of the 128-wide systolic arrays of mine" in found.message
    assert found.fix == {"num_heads": 20, "head_dim": 128}
    assert (found.gain_s or 0) > 0
    assert "ragged_head_dim" not in findings("pythia-2.8b", chip_of(16, 16))  # 80 = 5 * 16


@pytest.mark.parametrize("gpu", ["tpu_v4_like", "h100_like", "a100_like", "tpu_v5e_like"])
@pytest.mark.parametrize("model", ["gpt2-small", "pythia-2.8b", "llama-3-8b", "deepseek-v2-lite"])
def test_no_rule_speaks_of_what_only_a_gpu_has(model: str, gpu: str) -> None:
    found = findings(model, load_device(gpu))
    assert not {"flash_misfit", "six_gpu_nodes"} & set(found)
    for finding in found.values():
        assert not any(word in finding.message for word in (" SM", "thread block", "NVIDIA", "published template"))


def test_idle_rounds_are_counted_on_tensor_cores() -> None:
    sizes = {"num_tensor_cores": 100, "num_vector_cores": 400, "vector_lanes": 4096, "num_stacks": 40}
    chip = Accelerator.from_template(name="mine", width=128, depth=128, global_buffer_mib=512, **sizes)
    found = findings("gpt2-small", datasheet_of(chip), ffn_hidden_size=4352)["tail_wave"]
    assert "68% of 100 tensor cores busy" in found.message
    assert found.fix == {"ffn_hidden_size": 4224}
