"""What a row leaves blank is the fastest plan that fits, and the interval spans the others that fit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from sartor import estimate
from sartor.ask.alternatives import open_fields
from sartor.model.training import Recompute
from sartor.plans.space import rows_of
from sartor.step.trainers import PLAUSIBLE_TRAINERS
from sartor.validate.training_open import PLAUSIBLE
from sartor.validate.training_predictions import TrainingOutcome, predict_training, settled
from sartor.validate.training_rows import _training_case
from validate.training_rows_made import made

BLANK = {"mbs": "", "grad_accum": ""}


def priced(**change: Any) -> TrainingOutcome:
    (found,) = predict_training([_training_case(made(**change))])
    assert found.reason == ""
    return found


def test_a_row_that_states_its_plan_leaves_nothing_open() -> None:
    case = _training_case(made())
    assert case.open_runs == ()
    assert settled(case) == (case, 1.0)


@pytest.mark.parametrize("change", [BLANK, {"vp": ""}, BLANK | {"vp": "", "recompute": "unknown"}])
def test_no_stated_plan_that_fits_is_faster_than_what_a_blank_becomes(change: dict[str, Any]) -> None:
    blank = priced(**change)
    plan = blank.case.plan
    assert plan is not None
    assert blank.fits
    for size in (1, 2, 4) if "mbs" in change else ():
        stated = priced(mbs=size, grad_accum=16 // size, vp=plan.virtual_stages)
        assert not stated.fits or blank.predicted_s <= stated.predicted_s * (1 + 1e-9)


def test_the_interval_reaches_to_the_slowest_plausible_plan() -> None:
    case = _training_case(made(**BLANK))
    chosen, slowest = settled(case)
    assert 1 < slowest <= PLAUSIBLE
    (stated,) = predict_training([chosen])
    blank = priced(**BLANK)
    assert math.isclose(blank.high_s, slowest * stated.high_s)
    assert math.isclose(blank.low_s, stated.low_s)


def test_the_interval_of_an_unknown_trainer_holds_those_of_plausible_ones() -> None:
    plan = {"zero_stage": 3, "tp": 1, "pp": 1, "dp": 16, "grad_accum": 4, "dp_overlap": "on"}  # all three can run it
    unknown = priced(framework="in-house", **plan)
    for name in PLAUSIBLE_TRAINERS:
        known = priced(framework=name, **plan)
        assert unknown.low_s <= known.low_s * (1 + 1e-9)
        assert unknown.high_s >= known.high_s * (1 - 1e-9)


def test_what_does_not_fit_is_not_chosen() -> None:
    small = priced(**BLANK, seq=16384, recompute="none")
    assert small.fits
    assert small.case.plan is not None
    assert np.all(np.less_equal(small.case.plan.microbatch_size, 2))


def test_expert_parallelism_left_blank_divides_experts_and_ranks() -> None:
    moe = {"experts": 64, "topk": 8, "moe_d_ff": 1024, "ep": "", "vp": 1}
    case = _training_case(made(**moe))
    (run,) = case.open_runs
    assert set(np.ravel(run.plans.dims.ep).tolist()) == {1, 2, 4}
    assert any("expert parallelism not stated" in phrase for phrase in case.assumed)


LLAMA_405B = {
    "model": "Llama3.1-405B", "L": 126, "h": 16384, "a": 128, "kv": 8, "head_dim": 128, "d_ff": 53248, "gated": 1,
    "vocab": 128256, "seq": 8192, "gpu": "H100-SXM-80GB", "n_gpu": 16384, "gpus_per_node": 8, "inter_gbps_per_gpu": 400,
    "tp": 8, "pp": 16, "dp": 128, "gbs": 2048, "mbs": "", "grad_accum": "", "vp": "", "zero_stage": "",
    "recompute": "none", "iter_time_s": 6.6,
}  # fmt: skip


def test_layers_that_do_not_divide_leave_interleaving_open() -> None:
    """Llama 3.1 405B on 16,384 H100 (arXiv 2407.21783, table 4): 126 layers on 16 stages, 6.5 to 6.7 s."""
    case = _training_case(made(**LLAMA_405B))
    chunks = {int(run.plans.virtual_stages[0]): run.plans.stage_layers for run in case.open_runs}
    assert list(chunks) == [1, 2, 4, 8]
    assert all(sum(layers or ()) == 126 for layers in chunks.values())
    run = priced(**LLAMA_405B)
    assert run.case.plan is not None
    assert run.case.plan.virtual_stages == 8
    assert 0.9 < run.ratio < 1.1
    assert "8 chunk(s) per pipeline stage: the fastest that fits" in run.case.settled


def test_a_run_that_was_timed_is_sharded_until_it_fits() -> None:
    run = priced(**LLAMA_405B)
    assert run.case.plan is not None
    assert run.case.plan.zero_stage == 1
    assert "ZeRO 1: the fastest that fits" in run.case.settled
    stated = priced(**LLAMA_405B | {"zero_stage": 0})
    assert stated.case.plan is not None
    assert stated.case.plan.zero_stage == 0


@pytest.mark.parametrize(("changes", "kinds"), [
    ({}, 3), ({"framework": "in-house"}, 3), ({"framework": "torchtitan"}, 1), ({"context_parallel": "ring"}, 1)
])  # fmt: skip
def test_the_kind_of_context_parallelism_is_open_where_a_trainer_has_several(
    changes: dict[str, Any], kinds: int
) -> None:
    split = BLANK | {"cp": 2, "dp": 1, "tp": 1, "pp": 1, "n_gpu": 2}
    runs = _training_case(made(**split | changes)).open_runs
    assert len({run.job.context_parallel for run in runs}) == kinds


def test_what_does_not_fit_without_recomputation_recomputes_no_more_than_it_must() -> None:
    run = priced(**LLAMA_405B | {"recompute": ""})
    assert 0.9 < run.ratio < 1.1
    assert "recompute selective (layernorm): the fastest that fits" in run.case.settled


def test_a_switch_that_no_column_states_widens_the_interval_and_is_named() -> None:
    """The answer is the trainer's usual value: the fastest one is no nearer to published runs (training_open)."""
    blank = priced()
    stated = priced(tp_overlap="off")
    assert blank.predicted_s == stated.predicted_s
    faster = priced(tp_overlap="on", grad_dtype="bf16")
    assert blank.low_s <= faster.predicted_s < stated.predicted_s <= stated.high_s <= blank.high_s
    assert any(words.startswith("tp_overlap not stated: off (on: ") for words in blank.still_open)
    assert not any(words.startswith("tp_overlap") for words in stated.still_open)


def test_what_stays_open_is_that_of_an_estimate_of_the_same_plan() -> None:
    names = {"tp": 2, "pp": 2, "virtual_stages": 1, "zero_stage": 1, "microbatch_size": 1, "recompute": "none"}
    answer = estimate(
        "llama-3-8b", "a100_sxm", num_devices=16, global_batch_size=64, seq_len=4096, framework="megatron", **names
    )
    of_estimate = {name for name, fact in answer.question.run.facts.items() if fact.alternatives}
    case = _training_case(made())
    assert case.job is not None
    assert case.plan is not None
    assert case.cluster is not None
    fields = open_fields(case.run, case.job.shape, case.job, rows_of(case.plan), case.cluster.gpu)
    assert {field.name for field in fields} == of_estimate


DEEPSEEK_V3 = {
    "model": "DeepSeek-V3", "arch": "moe", "L": 61, "h": 7168, "a": 128, "kv": 128, "d_ff": 18432, "gated": 1,
    "vocab": 129280, "experts": 256, "topk": 8, "moe_d_ff": 2048, "shared_d_ff": 2048, "mla": 1,
    "mla_q_lora": 1536, "mla_kv_lora": 512, "mla_rope_dim": 64, "mla_v_dim": 128, "first_dense_layers": 3, "seq": 4096,
    "gpu": "H800-SXM-80GB", "n_gpu": 2048, "gpus_per_node": 8, "inter_gbps_per_gpu": 400, "dtype": "fp8", "tp": 1,
    "pp": 16, "dp": 128, "ep": 64, "gbs": 15360, "mbs": "", "grad_accum": "", "vp": "", "recompute": "",
    "iter_time_s": 20.1,
}  # fmt: skip


@pytest.mark.parametrize("framework", ["HAI-LLM", "in-house"])
def test_the_exchange_with_experts_is_open_where_the_trainer_is_not_known(framework: str) -> None:
    """DeepSeek-V3 on 2,048 H800: 180,000 hours per trillion tokens (arXiv 2412.19437, sec. 1)."""
    run = priced(**DEEPSEEK_V3, framework=framework)
    assert 1 < run.ratio < 1.25
    assert run.low_s < run.case.measured_s < run.high_s
    assert any("tokens sent once per node" in words for words in run.case.settled) == (framework == "in-house")


FASTEST = dict.fromkeys(("deepep", "ep_overlap", "fp8_param_gather"), "on") | {"grad_dtype": "bf16"}


@pytest.mark.parametrize("switches", [{}, {"gbs": 14336, "moments_dtype": "bf16", **FASTEST}])
def test_a_trainer_that_did_not_run_it_explains_no_published_run(switches: dict[str, Any]) -> None:
    """Megatron-LM has not DeepSeek's schedule, which holds fewer microbatches than interleaved chunks do: with every
    switch at its fastest, and a batch of 112 microbatches that chunks divide, whole layers are computed again."""
    run = priced(**DEEPSEEK_V3 | switches, framework="megatron")
    assert run.low_s > run.case.measured_s * switches.get("gbs", DEEPSEEK_V3["gbs"]) / DEEPSEEK_V3["gbs"]
    if switches:
        assert run.case.plan is not None
        assert (run.case.plan.virtual_stages, run.case.plan.recompute) == (2, Recompute.FULL)
    else:
        assert any(words.startswith("deepep not stated: off (on: ") for words in run.still_open)


def test_columns_named_as_switches_state_the_run_as_its_authors_describe_it() -> None:
    """arXiv 2412.19437, sec. 3.2.2 and 3.3.3; docs/case_studies/published-plans.md has +11% on H100's faster NVLink."""
    said = {"schedule": "dual_pipe_v", "deepep": "on", "moments_dtype": "bf16", "dtype": "fp8_block", "mbs": 1}
    run = priced(**DEEPSEEK_V3 | said, framework="HAI-LLM")
    assert 1 < run.ratio < 1.25
    assert run.low_s < run.case.measured_s < run.high_s
    assert not any(words.startswith("deepep") for words in run.still_open)


LLAMA_70B = {"model": "Llama3-70B", "L": 80, "h": 8192, "a": 64, "kv": 8, "head_dim": 128, "d_ff": 28672, "seq": 8192}


def test_partial_recomputation_is_as_little_as_fits() -> None:
    """Selected blocks of Llama 2 70B on 96 H100 under FSDP: how many is not said."""
    sizes = {
        "model": "Llama2-70B",
        "L": 80,
        "h": 8192,
        "a": 64,
        "kv": 8,
        "head_dim": 128,
        "d_ff": 28672,
        "vocab": 32000,
    }
    plan = {"tp": 1, "pp": 1, "dp": 96, "n_gpu": 96, "zero_stage": 3, "mbs": 2, "gbs": 192, "grad_accum": 1}
    row = sizes | plan | {"gpu": "H100-SXM-80GB", "framework": "FSDP", "recompute": "selective_block"}
    some, full = priced(**row), priced(**row | {"recompute": "full"})
    assert some.fits
    assert some.case.plan is not None
    assert 40 < some.case.plan.recompute_layers < 80
    assert some.predicted_s < full.predicted_s


def test_a_policy_of_named_tensors_keeps_those_of_attention_where_they_fit() -> None:
    tpu = {"framework": "MaxText", "gpu": "TPUv6e", "intra_node": "ICI", "inter_node": "", "tp": 1, "pp": 1, "sp": ""}
    row = LLAMA_70B | tpu | {"zero_stage": 3, "recompute": "partial_custom_policy", "grad_accum": 1, "iter_time_s": 30}
    small = priced(**row, dp=64, n_gpu=64, mbs=2, gbs=128)
    large = priced(**row, dp=128, n_gpu=128, mbs=5, gbs=640)
    assert small.case.plan is not None
    assert large.case.plan is not None
    assert (small.case.plan.recompute, large.case.plan.recompute) == (Recompute.SELECTIVE, Recompute.FULL)
    assert small.fits
    assert large.fits


def test_layers_are_in_host_memory_where_a_run_fits_no_other_way() -> None:
    """Llama 3 70B in FP8 under Megatron-FSDP on 64 GB200 without recomputation: its recipe offloads 40 of 80 layers
    (cpu_offloading_num_layers of scripts/performance/configs in NVIDIA-NeMo/Megatron-Bridge, read 2026-11-30). Its
    memory is predicted without knowing that it ran."""
    plan = {"tp": 1, "pp": 1, "dp": 64, "n_gpu": 64, "zero_stage": 3, "mbs": 2, "gbs": 256, "grad_accum": 2, "sp": 0}
    words = {"framework": "Megatron-Bridge", "gpu": "GB200-186GB", "gpus_per_node": 4, "dtype": "fp8_cs"}
    row = LLAMA_70B | plan | words | {"intra_node": "NVLink5 1800 GB/s NVL72 domain", "iter_time_s": 7.8}
    run = priced(**row)
    assert not run.fits
    assert any("layers in host memory" in phrase for phrase in run.case.settled)
    assert not priced(**row | {"run_kind": "oom"}).fits
