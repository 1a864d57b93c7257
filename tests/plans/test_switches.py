"""Switches of the trainer and the job in ``--fix``: set, compared, written into launch files, refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

import sartor
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.launch.files import launch_files, read_launch, save_files
from sartor.model.training import Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import Loss, ParallelDims
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.plans.fixed import SWITCHED, job_choices, module_sets, settings
from sartor.step.footprint import footprint
from sartor.step.orders import step_work
from sartor.step.question import training_job
from sartor.step.step import step

CLUSTER = load_cluster("dgx-h100")
JOB, _ = training_job(load_model("llama-3.1-8b"), CLUSTER.gpus, global_batch_size=64, seq_len=8192)
MOE, _ = training_job(load_model("mixtral-8x7b"), CLUSTER.gpus, global_batch_size=64, seq_len=4096)
PLAN = TrainingPlan(dims=ParallelDims(tp=2, dp=8), num_microbatches=8, zero_stage=1)


@pytest.mark.parametrize("name", SWITCHED)
def test_every_switch_takes_each_of_its_words_and_says_so(name: str) -> None:
    moe = replace(MOE, trainer=replace(MOE.trainer, losses=tuple(Loss)))
    for word in SWITCHED[name].words:
        if name not in ("recipe", "recompute_modules", "offload_modules", "offload_layers"):
            frozen = {"lora_rank": 8} if name in ("frozen_bits", "lora_targets") else {}
            (choice,), rest = job_choices(moe, CLUSTER.gpus, {**frozen, name: word, "tp": 2})
            assert rest == {"tp": 2}
            assert settings(choice.job)[name] == choice.said[name]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v2-lite"])
@pytest.mark.parametrize("cp", [1, 2])
def test_packed_documents_attend_as_sequences_of_their_length_would(model: str, cp: int) -> None:
    """A sequence of 8 documents is 8 sequences of one: every token has the same products and the same keys."""
    packed, _ = training_job(load_model(model), CLUSTER.gpus, global_batch_size=64, seq_len=8192)
    apart = replace(packed, seq_len=1024, global_batch_size=512)
    plan = replace(PLAN, dims=ParallelDims(dp=8, cp=cp), num_microbatches=8)
    for job, each in ((replace(packed, document_len=1024), plan), (replace(packed, document_len=8192), plan)):
        same = replace(apart, seq_len=job.document_len, global_batch_size=64 * 8192 // job.document_len)
        wide = replace(each, microbatch_size=8192 // job.document_len)
        assert float(step(job, each, CLUSTER).step_s) == pytest.approx(float(step(same, wide, CLUSTER).step_s))
        assert float(footprint(job, each, CLUSTER).device_bytes) == pytest.approx(
            float(footprint(same, wide, CLUSTER).device_bytes)
        )
    seconds = [float(step(replace(packed, document_len=d), plan, CLUSTER).step_s) for d in (512, 2048, 8192)]
    assert seconds == sorted(seconds)


def test_frozen_weights_have_no_update_no_gradients_and_no_optimizer() -> None:
    frozen = replace(JOB, trains_weights=False)
    spent, found = step(JOB, PLAN, CLUSTER), step(frozen, PLAN, CLUSTER)
    assert float(found.parts["optimizer_s"]) == 0 == float(found.parts["dp_exposed_s"])
    assert (
        2 / 3 < float(found.parts["compute_s"]) / float(spent.parts["compute_s"]) < 0.8
    )  # no weight gradients; attention has both passes
    held = footprint(frozen, PLAN, CLUSTER)
    assert held.optimizer_bytes == held.grad_bytes == 0


def test_frozen_weights_are_held_once_and_their_feed_forward_inputs_not_at_all() -> None:
    """FP8: one byte and its column-wise copy, no 16-bit weight; 8B, tp 2, 32 layers of gated 14,336."""
    fixed = {"tp": 2, "recipe": "fp8_delayed"}
    (trained,), _ = job_choices(JOB, CLUSTER.gpus, fixed)
    (frozen,), _ = job_choices(JOB, CLUSTER.gpus, {**fixed, "train_weights": "off"})
    spent, found = (footprint(each.job, PLAN, CLUSTER) for each in (trained, frozen))
    ends = 2 * 128256 * 4096 / 2
    layers = float(spent.param_bytes) - 2 * ends  # 2 bytes and twice 1 of each
    assert float(found.param_bytes) == pytest.approx(2 * ends + layers / 2, rel=0.01)
    assert float(found.stash_bytes) < 0.9 * float(spent.stash_bytes)


def test_frozen_weights_in_4_bits_hold_a_quarter_and_are_widened_for_every_product() -> None:
    """QLoRA: layers in 4.127 bits, embedding and head in 16; a read of 4 bits and a write of 16 before each product."""
    fixed = {"tp": 2, "train_weights": "off"}
    (frozen,), _ = job_choices(JOB, CLUSTER.gpus, fixed)
    (narrow,), _ = job_choices(JOB, CLUSTER.gpus, {**fixed, "frozen_bits": 4})
    ends = 2 * 128256 * 4096 / 2  # of two tensor-parallel devices
    held = [float(footprint(each.job, PLAN, CLUSTER).param_bytes) for each in (frozen, narrow)]
    layers = held[0] / 2 - ends
    assert held[1] == pytest.approx(2 * ends + layers * 4.127 / 8, rel=0.01)
    plain, widened = (step(each.job, PLAN, CLUSTER) for each in (frozen, narrow))
    more = float(widened.parts["compute_s"] - plain.parts["compute_s"])
    moved = 8 * 2 * layers * (4.127 / 8 + 2)  # 8 microbatches, forward and backward
    assert moved / CLUSTER.gpu.hbm_bytes_per_s < more < 2 * moved / CLUSTER.gpu.hbm_bytes_per_s


@pytest.mark.parametrize(("field", "value"), [("trains_weights", False), ("document_len", 1024)])
@pytest.mark.parametrize("kind", ["megatron", "torchtitan", "deepspeed", "accelerate"])
def test_no_launch_file_is_written_for_what_it_could_not_say(kind: str, field: str, value: int) -> None:
    with pytest.raises(InputError, match=r"train all weights|set in the data loader"):
        launch_files(kind, replace(JOB, **{field: value}), PLAN, CLUSTER)  # type: ignore[arg-type]


def test_any_compares_every_value_and_takes_the_fastest() -> None:
    asked = {"tp": 4, "pp": 1, "cp": 1, "zero_stage": 1}

    def ask(word: str) -> sartor.PlanAnswer:
        fix = {**asked, "tp_overlap": word}
        return sartor.plan("llama-3.1-8b", num_devices=8, global_batch_size=64, seq_len=8192, fix=fix)

    best = ask("any")
    assert best.best
    assert best.best.step_s == min(found.best.step_s for found in map(ask, ("on", "off")) if found.best)
    assert any("tp_overlap=on is the fastest setting; tp_overlap=off +" in note for note in best.assumptions)


def test_narrow_moments_shorten_the_update_hold_fewer_bytes_and_are_read_back(tmp_path: object) -> None:
    narrow = replace(JOB, moments_dtype=DType.BF16)
    assert float(step(narrow, PLAN, CLUSTER).parts["optimizer_s"]) < float(
        step(JOB, PLAN, CLUSTER).parts["optimizer_s"]
    )
    wide = footprint(JOB, PLAN, CLUSTER)
    of_remainders = (2 + 2 * 2) / (4 + 2 * 4)  # main weights as the 16 bits that the weights lack
    assert footprint(narrow, PLAN, CLUSTER).optimizer_bytes == pytest.approx(wide.optimizer_bytes * of_remainders)
    save_files(launch_files("megatron", narrow, PLAN, CLUSTER), str(tmp_path))
    assert read_launch(str(tmp_path)).parts.moments_dtype is DType.BF16


@pytest.mark.parametrize("trainer", ["torchtitan", "deepspeed", "accelerate"])
def test_trainers_without_narrow_moments_refuse_them(trainer: str) -> None:
    narrow, plan = replace(JOB, moments_dtype=DType.BF16), replace(PLAN, dims=ParallelDims(dp=16), num_microbatches=4)
    with pytest.raises(InputError, match="moments in fp32"):
        launch_files(trainer, narrow, replace(plan, zero_stage=2), CLUSTER)


@pytest.mark.parametrize(
    ("fix", "must"),
    [
        ({"deepep": "on"}, "the model has no experts"),
        ({"moments_dtype": "int3"}, "must be one of fp32, bf16, fp16, fp8, any"),
        ({"recipe": "nvfp4"}, "has no matrix units for it"),
        ({"recipe": "mxfp4"}, "has no matrix units for it"),
        ({"document_len": "1000"}, "must divide seq_len=8192; nearest: 512 and 1024"),
        ({"document_len": "x"}, "must be one of all, 1 to 16777216"),
        ({"document_len": "any"}, "takes one number"),
        ({"lora_targets": "qv"}, "lora_targets=qv: says which layers have an adapter.*nearest: --lora-rank 16"),
        ({"frozen_bits": "4"}, "trained weights must have 16 bits; nearest: --lora-rank 16"),
        ({"frozen_bits": "4", "train_weights": "off", "recipe": "fp8_delayed"}, "dequantized to 16 bits"),
        (dict.fromkeys(("tp_overlap", "dp_overlap", "p2p_overlap", "cuda_graphs", "fused_loss", "grad_fusion"), "any"),
         "at most 32 jobs"),
    ],
)  # fmt: skip
def test_a_switch_that_cannot_be_is_refused(fix: dict[str, int | str], must: str) -> None:
    with pytest.raises(InputError, match=must):
        job_choices(JOB, CLUSTER.gpus, fix)


def test_a_fully_sharding_trainer_looks_at_sets_of_shards_from_a_node_up() -> None:
    asked = {"tp": 1, "pp": 1, "cp": 1}

    def ask(**more: int) -> float:
        found = sartor.plan("llama-3.1-8b", num_devices=256, global_batch_size=512, seq_len=8192,
                            framework="torchtitan", fix={**asked, **more})  # fmt: skip
        assert found.best
        return found.best.step_s

    assert ask() < ask(shard_group=0)


DEEP, _ = training_job(load_model("deepseek-v3"), CLUSTER.gpus, global_batch_size=64, seq_len=4096)
DEEP_PLAN = TrainingPlan(dims=ParallelDims(dp=64, ep=64), zero_stage=1)


def _recomputing(job: TrainingJob, words: str) -> TrainingJob:
    return job_choices(job, CLUSTER.gpus, {"recompute_modules": words})[0][0].job


def test_every_module_more_is_slower_and_keeps_less_and_all_of_them_cost_about_what_full_does() -> None:
    selective, full = (replace(DEEP_PLAN, recompute=kind) for kind in (Recompute.SELECTIVE, Recompute.FULL))
    jobs = [_recomputing(DEEP, words) for words in module_sets(DEEP)[1:]]
    plans = [(DEEP, DEEP_PLAN), *((job, selective) for job in jobs), (DEEP, full)]
    seconds = [float(step(job, plan, CLUSTER).step_s) for job, plan in plans]
    kept = [float(footprint(job, plan, CLUSTER).stash_bytes) for job, plan in plans]
    assert all(a < b for a, b in pairwise(seconds[:-1]))
    assert seconds[-2] == pytest.approx(seconds[-1], rel=0.02)
    assert all(a > b for a, b in pairwise(kept))


def test_the_timeline_and_the_step_recompute_the_same_modules() -> None:
    job, plan = _recomputing(JOB, "layernorm+mlp"), replace(PLAN, recompute=Recompute.SELECTIVE)
    works = [step_work(job, each, CLUSTER) for each in (PLAN, plan)]
    flops = [sum(work.pieces[0][task.chunk][task.work].flops for task in work.orders[0]) for work in works]
    mlp = 2 * 3 * 4096 * 14336 / 2 * 8192 * 8 * 32  # gate, up and down of a rank's half, 32 layers, 8 microbatches
    assert flops[1] - flops[0] == pytest.approx(mlp, rel=1e-3)  # norms and activation beside


@pytest.mark.parametrize("words", ["layernorm", "mlp+layernorm", "core_attn+mlp"])
def test_named_modules_are_written_for_megatron_and_read_back(words: str, tmp_path: object) -> None:
    job, plan = _recomputing(JOB, words), replace(PLAN, recompute=Recompute.SELECTIVE)
    save_files(launch_files("megatron", job, plan, CLUSTER), str(tmp_path))
    reading = read_launch(str(tmp_path))
    assert reading.plan.recompute is Recompute.SELECTIVE
    assert reading.parts.recompute_modules == job.recompute_modules


def test_modules_the_model_lacks_are_refused() -> None:
    with pytest.raises(InputError, match="no such part; it has layernorm, mlp, core_attn"):
        _recomputing(JOB, "moe")
