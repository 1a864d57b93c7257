"""What the search looks at under ``--write`` is what the launch files can say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.effort import times

from sartor import api
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.launch.files import launch_files, read_launch, save_files
from sartor.launch.plan import WRITTEN, LaunchKind
from sartor.model.shape import Numerics, TransformerShape, family_numerics
from sartor.model.training import OffloadModule, Optimizer, PipelineSchedule, Recompute, TrainingPlan
from sartor.model.workload import AttentionKernel, ParallelDims
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.plans.space import (
    axes_of,
    broken,
    job_limits,
    plan_at,
    plan_space,
    size_of,
    structures,
    take,
    with_switches,
)
from sartor.read.huggingface import read_model
from sartor.step.question import training_job, within_files

CLUSTER = load_cluster("dgx-h100")
MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3")


@pytest.mark.parametrize("kind", list(WRITTEN), ids=lambda kind: kind.value)
@pytest.mark.parametrize(("devices", "seq_len"), [(16, 4096), (24, 32768)])
@pytest.mark.parametrize("model", MODELS)
def test_every_plan_that_is_searched_can_be_written_and_runs(
    kind: LaunchKind, devices: int, seq_len: int, model: str, tmp_path: Path
) -> None:
    words = {"global_batch_size": 96, "seq_len": seq_len, "framework": kind.value}
    job = within_files(training_job(load_model(model), CLUSTER.gpus, **words)[0], kind.value)
    space, some = plan_space(job, devices, {}), np.random.default_rng(devices).choice
    rows = structures(job, space).rows
    rows = with_switches(job, space, take(rows, some(size_of(rows), min(50, size_of(rows)), replace=False)), {})
    tried = some(size_of(rows), min(times(25, 1000), size_of(rows)), replace=False)
    assert len(tried)
    for index in tried.tolist():
        made = launch_files(kind, job, plan_at(job, rows, index), CLUSTER)
        save_files(made, tmp_path, overwrite=True)
        reading = read_launch(tmp_path, shape=job.shape)
        assert broken(reading.job(reading.shape or job.shape), reading.plan) == ()


@pytest.mark.parametrize("kind", list(WRITTEN), ids=lambda kind: kind.value)
@pytest.mark.parametrize("framework", [None, "megatron"])
def test_the_best_plan_that_is_printed_is_the_one_written(kind: LaunchKind, framework: str | None) -> None:
    """Also where the files are another trainer's than the one whose prices are asked for."""
    answer = api.plan(
        "mixtral-8x7b" if kind is not LaunchKind.TORCHTITAN else "qwen3-30b-a3b",
        num_devices=64,
        global_batch_size=256,
        seq_len=4096,
        framework=framework or kind.value,
        write=kind.value,
    )
    made = api.launch(answer, kind.value)
    priced = made.priced
    assert priced is answer.best
    assert not any("cannot run the best plan" in note for note in made.notes)


def test_a_degree_that_the_files_cannot_say_is_refused_with_its_reason() -> None:
    asked = {"num_devices": 16, "global_batch_size": 64, "seq_len": 4096}
    with pytest.raises(InputError, match="DeepSpeed has no pipeline"):
        api.plan("llama-3.1-8b", **asked, framework="deepspeed", write="deepspeed", fix={"pp": 2})


# -- what a framework requires together ---------------------------------------------------------------------------


def text_of(kind: str, model: str | TransformerShape, **plan: object) -> str:
    shape = load_model(model) if isinstance(model, str) else model
    job, _ = training_job(shape, CLUSTER.gpus, global_batch_size=64, seq_len=4096, framework=kind)
    made = TrainingPlan(dims=ParallelDims(dp=16, sequence_parallel=False), num_microbatches=4, **plan)  # type: ignore[arg-type]
    return "\n".join(file.text for file in launch_files(kind, job, made, CLUSTER).files)


@pytest.mark.parametrize(
    ("model", "backend"), [("llama-3.1-8b", "flash"), ("gpt-oss-20b", "fused"), ("deepseek-v3", "fused")]
)
def test_the_attention_backend_is_one_that_has_the_models_attention(model: str, backend: str) -> None:
    assert f"--attention-backend {backend}\n" in text_of("megatron", model)


def test_heads_that_transformer_engine_runs_unfused_are_refused_as_flash_and_read_as_unfused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"head_dim.*100.*multiple of 8.*attention=unfused"):
        text_of("megatron", "openllama-3b")
    words = (
        "--num-layers 2 --hidden-size 3200 --num-attention-heads 32 --ffn-hidden-size 8640 --swiglu --seq-length 2048"
    )
    for backend, kernel in (("", AttentionKernel.UNFUSED), ("--kv-channels 96", AttentionKernel.FLASH)):
        script = tmp_path / "launch.sh"
        script.write_text(f"torchrun --nproc-per-node 8 pretrain_gpt.py {words} --vocab-size 32000 --bf16 {backend}")
        read = read_launch(script)
        assert read.parts.attention_kernel is kernel
        assert any("a multiple of 8" in note for note in read.assumptions) is (kernel is AttentionKernel.UNFUSED)
    for trainer, said in (("megatron", True), ("nemo", True), ("torchtitan", False)):
        answer = api.estimate("openllama-3b", "h100", framework=trainer)
        assert any("would run head_dim=100 unfused" in note for note in answer.question.assumptions) is said


@pytest.mark.parametrize(("stage", "strategy"), [(2, "optim_grads"), (3, "optim_grads_params")])
def test_megatron_fsdp_has_the_arguments_that_its_guide_requires(stage: int, strategy: str) -> None:
    lines = [line.strip() for line in text_of("megatron", "llama-3.1-8b", zero_stage=stage).splitlines()]
    assert set(lines) >= {
        "--use-megatron-fsdp",
        f"--data-parallel-sharding-strategy {strategy}",
        "--no-gradient-accumulation-fusion",
        "--use-distributed-optimizer",
        "--ckpt-format fsdp_dtensor",
        "unset CUDA_DEVICE_MAX_CONNECTIONS",
    }
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in text_of("megatron", "llama-3.1-8b", zero_stage=1)


@pytest.mark.parametrize(("stage", "by_trainer"), [(3, "false"), (0, "true")])
def test_accelerate_recomputes_by_one_of_its_two_ways(stage: int, by_trainer: str) -> None:
    text = text_of("accelerate", "llama-3.1-8b", zero_stage=stage, recompute=Recompute.FULL)
    assert f"--gradient_checkpointing {by_trainer}\n" in text
    assert ("fsdp_activation_checkpointing: true" in text) is (stage == 3)


@pytest.mark.parametrize(("kind", "file"), [("accelerate", "accelerate.yaml"), ("deepspeed", "ds_config.json")])
def test_a_script_finds_its_configuration_from_any_folder(kind: str, file: str) -> None:
    assert f'"$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)/{file}"' in text_of(kind, "llama-3.1-8b", zero_stage=3)


def test_deepspeed_says_who_fills_in_auto_and_what_experts_need() -> None:
    assert "Hugging Face's Trainer, which replaces each" in text_of("deepspeed", "llama-3.1-8b", zero_stage=3)
    assert "set_z3_leaf_modules" not in text_of("deepspeed", "llama-3.1-8b", zero_stage=3)
    assert "set_z3_leaf_modules" in text_of("deepspeed", "qwen3-30b-a3b", zero_stage=3)


def test_glm_4_5_routes_by_sigmoid_with_a_bias() -> None:
    sizes = {"hidden_size": 4096, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 46}
    heads = {"num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "partial_rotary_factor": 0.5}
    experts = {"n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1}
    config = {"model_type": "glm4_moe", "attention_bias": True, "vocab_size": 151552, "routed_scaling_factor": 2.5}
    text = text_of("megatron", read_model({**config, **sizes, **heads, **experts, "n_group": 1}).shape)
    assert "--moe-router-score-function sigmoid\n" in text
    assert "--moe-router-enable-expert-bias\n" in text
    assert "--moe-router-topk-scaling-factor 2.5\n" in text
    assert "--moe-router-num-groups" not in text


@pytest.mark.parametrize("family", ["deepseek_v3", "dots1", "glm4_moe", "glm4_moe_lite", "solar_open"])
def test_families_with_deepseeks_router_are_known_to_route_by_sigmoid(family: str) -> None:
    numerics = family_numerics(family, {}, "silu")
    assert (numerics.get("router_score"), numerics.get("router_bias")) == ("sigmoid", True)


def test_experts_without_grouped_gemms_are_said_to_be_slower_than_priced(tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(text_of("megatron", "qwen3-30b-a3b"))
    assert not read_launch(script).unpriced
    script.write_text(text_of("megatron", "qwen3-30b-a3b").replace("    --moe-grouped-gemm\n", ""))
    assert [line for line in read_launch(script).unpriced if "one by one" in line]


def test_a_refusal_names_a_value_that_is_empty() -> None:
    shape = load_model("qwen3-30b-a3b")
    numerics = Numerics(values={**(shape.numerics or Numerics()).values, "rope_layers": "1110" * 12})
    with pytest.raises(InputError, match="has that of a plain decoder in its own model of these sizes"):
        text_of("torchtitan", replace(shape, numerics=numerics), zero_stage=3)


def test_layers_recomputed_of_every_chunk_are_searched_in_multiples_of_the_chunks() -> None:
    answer = api.plan(
        "llama-3.1-8b",
        "pcie-8x-a100",
        num_devices=16,
        global_batch_size=64,
        seq_len=4096,
        attention="unfused",
        write="megatron",
        headroom=0.1,
    )
    best = answer.best
    assert best is not None
    priced = api.launch(answer, "megatron").priced
    assert priced is best
    assert best.plan.virtual_stages > 1
    assert best.plan.recompute_layers > 0
    assert best.plan.recompute_layers % best.plan.virtual_stages == 0


@pytest.mark.parametrize(
    ("trainer", "written"),
    [
        ("megatron", "--pipeline-model-parallel-layout 'E|t"),
        ("megatron-bridge", "pipeline_model_parallel_layout='E|t"),
        ("torchtitan", "module_fqns_per_model_part=[['tok_embeddings'], ['layers.0'"),
    ],
)
def test_stages_of_the_embedding_or_the_head_alone_are_written_and_read_back(
    trainer: str, written: str, tmp_path: Path
) -> None:
    """Megatron-LM's layout and torchtitan's lists of modules allow a first and last stage without a layer
    (pipeline_parallel_layer_layout.py asks for E first, L last and every layer once); no other stage is empty."""
    fix = {"pp": 15, "virtual_stages": 1}
    answer = api.plan(
        "llama-3-8b", "dgx-h100", num_devices=120, global_batch_size=512, framework=trainer, fix=fix, top=1
    )
    assert answer.best is not None
    stages = answer.best.plan.stage_layers
    assert stages is not None
    assert len(stages) == 15
    assert (stages[0], stages[-1]) == (0, 0)
    assert all(stages[1:-1])
    assert sum(stages) == 32
    files = api.launch(answer, trainer)
    priced = files.priced
    assert priced.plan == answer.best.plan
    assert any(written in file.text for file in files.files)
    save_files(files, tmp_path)
    assert read_launch(tmp_path, num_devices=120).plan.stage_layers == stages


# -- one limit, one sentence --------------------------------------------------------------------------------------

MUON, NARROW = {"optimizer": Optimizer.MUON}, {"moments_dtype": DType.BF16}
LIMITS: tuple[tuple[str, dict[str, Any], dict[str, Any], str], ...] = (
    ("megatron", MUON, {"zero_stage": 2}, "Megatron-LM shards Muon's states by ZeRO 1 at most"),
    ("megatron", MUON, {"optimizer_offload": True}, "Megatron-LM offloads states of adam and sgd"),
    ("megatron", NARROW, {"zero_stage": 0}, "Megatron-LM narrows Adam's moments under ZeRO 1"),
    ("megatron-bridge", {}, {"schedule": PipelineSchedule.ZERO_BUBBLE}, "Megatron Bridge has no such schedule"),
    ("torchtitan", NARROW, {}, "torchtitan keeps the optimizer's moments in fp32"),
    ("torchtitan", {"optimizer": Optimizer.SGD}, {}, "torchtitan supports adam"),
    ("deepspeed", {}, {"optimizer_offload": True, "zero_stage": 0}, "DeepSpeed offloads sharded states"),
    ("deepspeed", {"offload_modules": frozenset({OffloadModule.CORE_ATTN})}, {}, "DeepSpeed does not offload it"),
    ("accelerate", MUON, {}, "Hugging Face accelerate supports adam and sgd"),
    ("accelerate", {}, {"recompute": Recompute.SELECTIVE}, "Hugging Face accelerate recomputes all layers or none"),
)


@pytest.mark.parametrize(("trainer", "of_job", "of_plan", "sentence"), LIMITS)
def test_search_lint_and_writer_refuse_with_one_sentence(
    trainer: str, of_job: dict[str, Any], of_plan: dict[str, Any], sentence: str
) -> None:
    job, _ = training_job(load_model("llama-3.2-1b"), CLUSTER.gpus, global_batch_size=64, framework=trainer)
    job = replace(within_files(job, trainer), **of_job)
    plan = TrainingPlan(num_microbatches=32).with_columns(dp=2, pp=2 if "schedule" in of_plan else 1, **of_plan)
    assert any(sentence in reason for reason in broken(job, plan))
    with pytest.raises(InputError, match=sentence):
        launch_files(LaunchKind(trainer), job, plan, CLUSTER)
    axes = {name: value for name, value in axes_of(plan).items() if name != "recompute_layers"}
    space = plan_space(job, int(plan.num_devices), axes)
    if any(job_limits(job)):
        with pytest.raises(InputError, match=sentence):
            structures(job, space)
    else:
        possible = structures(job, space)
        rejected = dict(possible.rejected)
        assert not size_of(with_switches(job, space, possible.rows, rejected))
        assert sentence in rejected
