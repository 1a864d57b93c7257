"""MaxText: what is written reads back as the same model and plan at the same price; launches as people write them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from launch.package_index import fetched
from launch.test_own_loaders import judged
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.launch.document import Document
from sartor.launch.files import launch_files, read_launch, save_files
from sartor.launch.maxtext_model import model_keys, shape_of
from sartor.model.parallel import ParallelDims
from sartor.model.training import (
    OffloadModule,
    PipelineSchedule,
    Recipe,
    Recompute,
    RecomputeModule,
    TrainingJob,
    TrainingPlan,
)
from sartor.model.zoo import load_model
from sartor.plans.search import search_plans
from sartor.step.orders import device_order
from sartor.step.question import training_job
from sartor.step.simulation import PipelineTimes, simulate
from sartor.step.step import step

CLUSTER = load_cluster("dgx-h100")
NORMS = frozenset({RecomputeModule.LAYERNORM, RecomputeModule.MOE_ACT})
MODELS = [
    "llama-2-7b", "llama-3.1-8b", "mistral-7b-v0.1", "mixtral-8x7b", "qwen2.5-7b", "qwen3-8b", "qwen3-30b-a3b",
    "deepseek-v3",
]  # fmt: skip


def job_of(name: str, batch: int = 64) -> TrainingJob:
    job, _ = training_job(load_model(name), CLUSTER.gpus, global_batch_size=batch, seq_len=4096, framework="maxtext")
    return job


def plan_of(**changes: object) -> TrainingPlan:
    plan = TrainingPlan(dims=ParallelDims(dp=8), num_microbatches=8, zero_stage=3, recompute=Recompute.SELECTIVE)
    return replace(plan, **changes)  # type: ignore[arg-type]


PLANS = {
    "sharded": plan_of(),
    "hybrid": plan_of(dims=ParallelDims(dp=16), num_microbatches=4, shard_group=8),
    "optimizer": plan_of(dims=ParallelDims(tp=2, dp=8), zero_stage=1, recompute=Recompute.FULL, optimizer_offload=True),
    "replicated": plan_of(zero_stage=0, dims=ParallelDims(tp=8, dp=1), num_microbatches=64),
    "contexts": plan_of(dims=ParallelDims(tp=2, cp=2, dp=8)),
    "stages": plan_of(
        dims=ParallelDims(pp=4, tp=2, dp=2),
        num_microbatches=16,
        microbatch_size=2,
        virtual_stages=2,
        schedule=PipelineSchedule.GPIPE,
        zero_stage=1,
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_field_of_a_model_comes_back(name: str) -> None:
    shape = load_model(name)
    again = shape_of(Document(raw=dict(model_keys(shape)[0])), shape.max_positions)
    assert again is not None
    assert again.fields() == shape.fields()
    assert again.numerics
    assert shape.numerics
    assert again.numerics.unusual == shape.numerics.unusual


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_comes_back_at_the_same_price(name: str, tmp_path: Path) -> None:
    job, plan = job_of("llama-3.1-8b"), PLANS[name]
    save_files(launch_files("maxtext", job, plan, CLUSTER), tmp_path)
    reading = read_launch(tmp_path)
    assert (reading.unknown, reading.unpriced) == ((), ())
    assert reading.num_devices == plan.num_devices
    asked, found = (float(step(j, p, CLUSTER).step_s) for j, p in ((job, plan), (reading.job(), reading.plan)))
    assert found == pytest.approx(asked, rel=1e-9)


def test_experts_take_ranks_of_the_data_axis(tmp_path: Path) -> None:
    job = replace(
        job_of("mixtral-8x7b"), offload_modules=frozenset({OffloadModule.CORE_ATTN}), recipe=Recipe.FP8_CURRENT
    )
    plan = plan_of(dims=ParallelDims(tp=2, dp=16, ep=8), num_microbatches=4)
    save_files(launch_files("maxtext", job, plan, CLUSTER), tmp_path)
    text = (tmp_path / "launch.sh").read_text()
    assert all(
        word in text for word in ("ici_expert_parallelism=4", "dcn_expert_parallelism=2", "dcn_fsdp_parallelism=2")
    )
    reading = read_launch(tmp_path)
    assert (reading.plan.dims.ep, reading.plan.dims.dp, reading.plan.shard_group) == (8, 16, 0)
    assert reading.parts.offload_modules == job.offload_modules
    assert reading.parts.recompute_modules == NORMS


def test_what_maxtext_cannot_do_is_refused() -> None:
    job = job_of("llama-3.1-8b")
    with pytest.raises(InputError, match="all forward, then all backward"):
        launch_files("maxtext", job, plan_of(dims=ParallelDims(pp=2, dp=4), zero_stage=1, num_microbatches=16), CLUSTER)
    with pytest.raises(InputError, match="always recomputes norms"):
        launch_files("maxtext", job, plan_of(recompute=Recompute.NONE), CLUSTER)
    with pytest.raises(InputError, match="zero_stage=2"):
        launch_files("maxtext", job, plan_of(zero_stage=2), CLUSTER)
    for model, why in (("gemma-2-9b", "blocks llama2"), ("llama-3.2-1b", "rope_factor=32")):
        with pytest.raises(InputError, match=why):
            launch_files("maxtext", replace(job, shape=load_model(model)), plan_of(), CLUSTER)


def test_every_plan_of_the_search_can_be_written() -> None:
    job = replace(job_of("llama-3.1-8b"), global_batch_size=32)
    found = search_plans(job, CLUSTER, 16)
    for priced in found.top:
        launch_files("maxtext", job, priced.plan, CLUSTER)
    assert any(int(priced.plan.dims.pp) > 1 for priced in found.top)


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


@pytest.mark.parametrize(
    ("words", "must"),
    [
        ("decoder_block=gemma3", "must be one of llama2"),
        ("quantization=int8", "one that is priced"),
        ("remat_policy=most", "must be one of full"),
        ("ici_fsdp_parallelism=3 dcn_data_parallelism=1", "num_devices=8"),
        ("per_device_batch_size=0.1", "a whole sequence"),
        ("model_name=llama3.1-8b override_model_config=true", "only named"),
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


JUDGE = """
import pathlib, re, yaml
import torch_shells
torch_shells.NAMES -= {"numpy"}
torch_shells.NAMES |= {"jax", "jaxlib", "flax", "google", "tensorflow", "optax", "orbax", "aqt", "omegaconf", "jinja2"}
torch_shells.NAMES |= {"etils", "grain", "absl", "psutil", "pathwaysutils"}
for name in ("gcs_utils", "max_utils", "elastic_utils", "max_logging"):
    sys.modules["maxtext.utils." + name] = torch_shells.Package(name)
from maxtext.configs import types
from maxtext.utils import max_utils
root = pathlib.Path(types.__file__).parent
base = yaml.safe_load((root / "base.yml").read_text())
for name in NAMES:
    text = pathlib.Path(FOLDER, name, "launch.sh").read_text()
    keys = {key: yaml.safe_load(value) for key, value in re.findall(r"^    (\\w+)=(\\S+)$", text, re.M)}
    assert not set(keys) - set(base), set(keys) - set(base)
    devices = 1
    for key, value in keys.items():
        devices *= value if key.endswith("_parallelism") else 1
    slices = devices // 8
    types.jax.local_device_count = lambda: 8
    types.jax.devices = lambda *_: [None] * devices
    max_utils.get_num_slices = lambda _: slices
    given = {k: None if v == "None" else v for k, v in {**base, **keys, "run_name": "x", "num_slices": slices}.items()}
    made = types.MaxTextConfig(**given)
    print(name, made.global_batch_size_to_train_on, made.num_decoder_layers, made.emb_dim, sep="|")
"""


@pytest.mark.slow
def test_maxtexts_own_types_take_every_file(tmp_path: Path) -> None:
    fetched(tmp_path / "site", "maxtext==0.2.5", "--ignore-requires-python")
    for name, plan in PLANS.items():
        save_files(launch_files("maxtext", job_of("llama-3.1-8b"), plan, CLUSTER), tmp_path / name)
    for model in MODELS:
        save_files(launch_files("maxtext", job_of(model), plan_of(), CLUSTER), tmp_path / model)
    names = [*PLANS, *MODELS]
    found = dict(line.split("|", 1) for line in judged(JUDGE, tmp_path, names).splitlines())
    assert list(found) == names
    assert all(rest.startswith("64|") for rest in found.values())
    assert found["deepseek-v3"] == "64|61|7168"
