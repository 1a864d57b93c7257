"""MaxText: launches as people write them, read as model and plan."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.launch.files import launch_files, read_launch
from sartor.model.training import PipelineSchedule, Recompute, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.step.orders import PipelineTimes, device_order, simulate
from sartor.step.question import training_job

CLUSTER = load_cluster("dgx-h100")
SIZES = (
    "base_emb_dim={} base_num_decoder_layers={} base_num_query_heads={} base_num_kv_heads={} "
    "base_mlp_dim={} vocab_size={}"
)
MODELS = {
    "llama-3.1-8b": f"decoder_block=llama2 {SIZES.format(4096, 32, 32, 8, 14336, 128256)} head_dim=128 "
    "rope_max_timescale=500000 rope_type=llama3.1",
    "qwen3-8b": f"decoder_block=qwen3 {SIZES.format(4096, 36, 32, 8, 12288, 151936)} head_dim=128 use_qk_norm=true "
    "rope_max_timescale=1000000 normalization_layer_epsilon=1.0e-06",
    "mixtral-8x7b": f"decoder_block=mixtral {SIZES.format(4096, 32, 32, 8, 14336, 32000)} head_dim=128 num_experts=8 "
    "num_experts_per_tok=2 base_moe_mlp_dim=14336 load_balance_loss_weight=0.02 rope_max_timescale=1000000",
    "deepseek-v3": f"decoder_block=deepseek {SIZES.format(7168, 61, 128, 128, 18432, 129280)} attention_type=mla "
    "q_lora_rank=1536 kv_lora_rank=512 qk_nope_head_dim=128 qk_rope_head_dim=64 v_head_dim=128 num_experts=256 "
    "num_experts_per_tok=8 base_moe_mlp_dim=2048 first_num_dense_layers=3 shared_experts=1 routed_score_func=sigmoid "
    "routed_bias=true routed_scaling_factor=2.5 n_routing_groups=8 topk_routing_group=4 mtp_num_layers=1 "
    "rope_type=yarn rope_factor=40 original_max_position_embeddings=4096 normalization_layer_epsilon=1.0e-06",
}
"""A model's keys, as MaxText's own configurations of these models give them."""
PLANS = {
    "ici_fsdp_parallelism=8 gradient_accumulation_steps=8 remat_policy=minimal_flash": "dp 8, 8 x 1, ZeRO 3 of 8",
    "ici_fsdp_parallelism=8 dcn_data_parallelism=2": "dp 16, 1 x 1, ZeRO 3 of 8",
    "ici_tensor_parallelism=2 ici_data_parallelism=4 dcn_data_parallelism=2 shard_optimizer_over_data=true "
    "ici_fsdp_parallelism=1": "dp 8, 1 x 2, ZeRO 1 of 8",
    "ici_tensor_parallelism=2 ici_context_parallelism=2 ici_fsdp_parallelism=2": "dp 2, 1 x 4, ZeRO 3 of 4",
    "ici_pipeline_parallelism=4 ici_fsdp_parallelism=1 ici_tensor_parallelism=2 dcn_data_parallelism=2 "
    "num_layers_per_pipeline_stage=4 num_pipeline_microbatches=8": "dp 2, 8 x 1, ZeRO 0 of 2",
}
"""Keys, and the plan they say: data ranks, microbatches x their size, ZeRO stage and devices that shard."""


@pytest.mark.parametrize("name", MODELS)
def test_a_models_keys_are_that_model(name: str, tmp_path: Path) -> None:
    shape, file = load_model(name), tmp_path / "run.sh"
    file.write_text(f"python3 -m MaxText.train base.yml {MODELS[name]}\n")
    reading = read_launch(file, num_devices=8).shape
    assert reading is not None
    assert reading.fields() == shape.fields()


@pytest.mark.parametrize("keys", PLANS)
def test_keys_of_the_mesh_are_a_plan(keys: str, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    text = f"{MODELS['llama-3.1-8b']} {keys} per_device_batch_size=1 dcn_fsdp_parallelism=1 hardware=gpu"
    file.write_text(f"python3 -m MaxText.train base.yml {text}\n")
    devices = 16 if "dcn_data_parallelism=2" in keys else 8
    plan = read_launch(file, num_devices=devices).plan
    shards = plan.shard_group or plan.dims.dp * plan.dims.cp
    batch = f"{plan.num_microbatches} x {plan.microbatch_size}"
    assert f"dp {plan.dims.dp}, {batch}, ZeRO {plan.zero_stage} of {shards}" == PLANS[keys]
    assert plan.num_devices == devices


def test_no_file_is_written_for_maxtext() -> None:
    job, _ = training_job(load_model("llama-3.1-8b"), CLUSTER.gpus, global_batch_size=64, seq_len=4096)
    with pytest.raises(InputError, match="trainer=maxtext: must be one of megatron, megatron-bridge, torchtitan"):
        launch_files("maxtext", job, TrainingPlan(dims=ParallelDims(dp=8), num_microbatches=8), CLUSTER)


OWN = """
export RUN_NAME=trial-$(date +%F)
export XLA_FLAGS="--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_enable_triton_gemm=false"
python3 -m maxtext.trainers.pre_train.train ${CONFIGS:-src/maxtext/configs}/base.yml run_name=$RUN_NAME \\
    model_name=llama3.1-70b hardware=gpu dcn_fsdp_parallelism=16 ici_fsdp_parallelism=8 per_device_batch_size=2 \\
    max_target_length=8192 remat_policy=qkv_proj_offloaded attention=cudnn_flash_te steps=30 num_vocab_tiling=4
"""


def test_a_launch_that_names_its_model_is_read(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(OWN)
    reading = read_launch(file)
    assert reading.shape == load_model("llama-3.1-70b")
    assert (reading.num_devices, reading.plan.dims.dp, reading.plan.zero_stage) == (128, 128, 3)
    assert (reading.plan.microbatch_size, reading.parts.global_batch_size) == (2, 256)
    assert reading.plan.recompute == Recompute.FULL
    assert reading.unpriced == ("num_vocab_tiling=4",)
    assert "steps" in reading.ignored


def test_open_axes_take_the_devices_that_are_given(tmp_path: Path) -> None:
    file = tmp_path / "job.yml"
    file.write_text(
        "base_config: base.yml\nmodel_name: mixtral-8x7b\nper_device_batch_size: 4\nici_tensor_parallelism: 4\n"
    )
    with pytest.raises(InputError, match="num_devices"):
        read_launch(file)
    reading = read_launch(file, num_devices=64)
    dims = reading.plan.dims
    assert (dims.tp, dims.dp, reading.plan.zero_stage, reading.plan.microbatch_size) == (4, 16, 3, 16)
    assert any("1 slices" in note for note in reading.assumptions)


def test_one_factor_scales_the_whole_model(tmp_path: Path) -> None:
    """64 = 2^6: two doublings each of width, of heads and of layers."""
    file = tmp_path / "run.sh"
    file.write_text("python3 -m MaxText.train base.yml global_parameter_scale=64 ici_fsdp_parallelism=8\n")
    shape = read_launch(file, num_devices=8).shape
    assert shape is not None
    assert (shape.hidden_size, shape.num_heads, shape.num_layers, shape.ffn_hidden_size) == (8192, 64, 64, 28672)


def test_a_named_model_has_the_sizes_that_override_it(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    words = "model_name=llama3.1-8b override_model_config=true head_dim=256 base_num_query_heads=16 base_num_kv_heads=4"
    file.write_text(f"python3 MaxText/train.py MaxText/configs/base.yml {words} per_device_batch_size=1\n")
    shape = read_launch(file, num_devices=8).shape
    assert shape is not None
    assert [shape.fields()[name] for name in ("head_dim", "num_heads", "num_kv_heads")] == [256, 16, 4]


@pytest.mark.parametrize(
    ("words", "must"),
    [
        ("decoder_block=gemma3", "must be one of llama2"),
        ("quantization=int8", "one that is priced"),
        ("remat_policy=most", "must be one of full"),
        ("ici_fsdp_parallelism=3 dcn_data_parallelism=1", "num_devices=8"),
        ("per_device_batch_size=0.1", "a whole sequence"),
        ("model_name=llama3.1-8b override_model_config=true base_num_kv_heads=5", "num_kv_heads"),
        (
            "ici_pipeline_parallelism=2 num_layers_per_pipeline_stage=5 per_device_batch_size=1",
            "must divide the model's",
        ),
    ],
)
def test_keys_that_cannot_be_are_refused(words: str, must: str, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(f"python3 MaxText/train.py MaxText/configs/base.yml {words}\n")
    with pytest.raises(InputError, match=must):
        read_launch(file, num_devices=8)


def test_a_key_that_holds_a_table_is_one_more_that_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("per_device_batch_size: 1\nici_diloco_parallelism: {a: 1}\nbase_path: {b: 2}\n")
    assert read_launch(tmp_path / "a.yml", num_devices=8).unpriced == ("ici_diloco_parallelism.a=1", "base_path.b=2")


@pytest.mark.parametrize("virtual", [1, 3])
def test_a_circular_pipeline_idles_as_maxtext_says(virtual: int) -> None:
    """(stages - 1) / (repeats x microbatches + stages - 1), forward and backward alike."""
    pp, m = 4, 8
    ones = [[1.0 / virtual] * virtual for _ in range(pp)]

    times = PipelineTimes(forward_s=np.array(ones), dgrad_s=np.array(ones), wgrad_s=np.array(ones))
    events = simulate(PipelineSchedule.GPIPE, times, m)
    busy = 3.0 * m
    assert 1 - busy / max(event.end_s for event in events) == pytest.approx((pp - 1) / (virtual * m + pp - 1))
    works = [task.work for task in device_order(PipelineSchedule.GPIPE, 1, pp, virtual, m)]
    assert works == sorted(works, reverse=True)
