"""Activations in host memory: fewer bytes on the device, never a faster step, written, read back and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.hardware.cluster import own_links
from sartor.hardware.cluster_catalog import load_cluster
from sartor.launch.files import launch_files, read_launch, save_files
from sartor.model.training import OffloadModule, Recompute, RecomputeModule, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.plans.fixed import job_choices, offload_sets
from sartor.plans.next import next_steps
from sartor.plans.result import PricedPlan
from sartor.plans.search import make_pricer
from sartor.step.footprint import footprint
from sartor.step.mechanisms.offload import host_bytes_per_s
from sartor.step.step import step
from sartor.step.trainers.megatron import MEGATRON
from sartor.step.trainers.torchtitan import TORCHTITAN

CLUSTER = load_cluster("dgx-h100")
JOB = TrainingJob(shape=load_model("mixtral-8x7b"), seq_len=4096, global_batch_size=64, trainer=MEGATRON)
PLAN = TrainingPlan(dims=ParallelDims(dp=8, ep=8), num_microbatches=8, zero_stage=1)
STAGED = replace(PLAN, dims=ParallelDims(pp=2, dp=8, ep=8))


def offloading(*modules: OffloadModule, layers: int = 0) -> TrainingJob:
    return replace(JOB, offload_modules=frozenset(modules), offload_layers=layers)


@pytest.mark.parametrize("plan", [PLAN, STAGED, replace(STAGED, recompute=Recompute.SELECTIVE)])
def test_every_further_module_holds_fewer_bytes_and_takes_no_less_time(plan: TrainingPlan) -> None:
    held, took = float("inf"), 0.0
    for words in offload_sets(JOB)[:-1]:
        (choice,), _ = job_choices(JOB, CLUSTER.gpus, {"offload_modules": words})
        bytes_, seconds = (
            footprint(choice.job, plan, CLUSTER).stash_bytes,
            float(step(choice.job, plan, CLUSTER).step_s),
        )
        assert bytes_ < held
        assert seconds >= took
        held, took = float(bytes_), seconds


def test_what_is_copied_longer_than_a_layer_computes_is_the_steps_and_no_more() -> None:
    """An infinitely fast host link costs nothing; a slow one the copies of 32 layers, both ways, less the compute."""
    job = offloading(OffloadModule.LAYER)
    plain = float(step(JOB, PLAN, CLUSTER).step_s)
    gpu = replace(CLUSTER.gpu, pcie_bytes_per_s=1e6)
    slow = replace(CLUSTER, gpu=gpu)
    kept = float(footprint(JOB, replace(PLAN, num_microbatches=1), CLUSTER).stash_bytes)
    copies = 8 * 2 * kept / host_bytes_per_s(slow)  # 8 microbatches, out and back
    assert plain < float(step(job, PLAN, CLUSTER).step_s)
    assert float(step(job, PLAN, slow).step_s) == pytest.approx(copies, rel=0.1)


def test_a_superchip_reaches_its_host_by_the_link_on_the_board() -> None:
    """GH200: NVLink-C2C, 450 GB/s, bound by its sustained share of LPDDR5X; without it, the PCIe link, 64 GB/s."""
    grace = own_links(load_gpu("gh200"))
    alone = replace(grace, gpu=replace(grace.gpu, host_link_bytes_per_s=0.0, host_memory_bytes_per_s=0.0))
    assert host_bytes_per_s(alone) == 64e9
    assert 300e9 < host_bytes_per_s(grace) < 450e9
    job, plan = offloading(OffloadModule.LAYER), replace(PLAN, optimizer_offload=True)
    for each in (replace(job, offload_modules=frozenset()), job):
        assert float(step(each, plan, grace).step_s) < float(step(each, plan, alone).step_s)


def test_layers_that_stay_on_the_device_halve_the_copies() -> None:
    half, whole = (footprint(offloading(OffloadModule.LAYER, layers=n), PLAN, CLUSTER).stash_bytes for n in (16, 0))
    none = footprint(JOB, PLAN, CLUSTER).stash_bytes
    assert whole < half < none
    assert none - half == pytest.approx((none - whole) / 2, rel=0.1)


def test_nothing_is_moved_of_what_is_computed_again() -> None:
    again = replace(JOB, recompute_modules=frozenset({RecomputeModule.MOE}))
    plan = replace(PLAN, recompute=Recompute.SELECTIVE)
    both = replace(again, offload_modules=frozenset({OffloadModule.EXPERT_FC1, OffloadModule.MOE_ACT}))
    assert footprint(both, plan, CLUSTER).stash_bytes == footprint(again, plan, CLUSTER).stash_bytes
    full = replace(PLAN, recompute=Recompute.FULL)
    moved = offloading(OffloadModule.CORE_ATTN)
    assert float(step(moved, full, CLUSTER).step_s) == float(step(JOB, full, CLUSTER).step_s)


@pytest.mark.parametrize("kind", ["megatron", "megatron-bridge"])
@pytest.mark.parametrize(
    "job",
    [
        offloading(OffloadModule.CORE_ATTN, OffloadModule.ATTN_PROJ, OffloadModule.EXPERT_FC1),
        offloading(OffloadModule.LAYER, layers=12),
    ],
)
def test_what_is_offloaded_is_written_and_read_back(kind: str, job: TrainingJob, tmp_path: Path) -> None:
    save_files(launch_files(kind, job, PLAN, CLUSTER), tmp_path)
    parts = read_launch(tmp_path).parts
    assert (parts.offload_modules, parts.offload_layers) == (job.offload_modules, job.offload_layers)
    assert not read_launch(tmp_path).unpriced


def test_what_a_trainer_cannot_offload_is_refused() -> None:
    with pytest.raises(InputError, match="does not offload it"):
        launch_files("deepspeed", offloading(OffloadModule.CORE_ATTN), replace(PLAN, dims=ParallelDims(dp=8)), CLUSTER)
    with pytest.raises(InputError, match="does not work with a pipeline"):
        launch_files("megatron", offloading(OffloadModule.LAYER), STAGED, CLUSTER)
    with pytest.raises(InputError, match="core_attn with it"):
        launch_files("megatron", offloading(OffloadModule.ATTN_PROJ), PLAN, CLUSTER)
    with pytest.raises(InputError, match="has no such switch"):
        job_choices(replace(JOB, trainer=TORCHTITAN), CLUSTER.gpus, {"offload_modules": "core_attn"})
    with pytest.raises(InputError, match="fix offload_modules=layer_input: must be a part"):
        job_choices(JOB, CLUSTER.gpus, {"offload_modules": "layer_input"})
    with pytest.raises(InputError, match="all, 1 to"):
        job_choices(JOB, CLUSTER.gpus, {"offload_layers": "-3"})


SCRIPT = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 \\
  --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 \\
  --global-batch-size 64 --vocab-size 32000 --swiglu --bf16 --use-distributed-optimizer {}
"""


@pytest.mark.parametrize(
    ("words", "must"),
    [
        ("--fine-grained-activation-offloading", "must be of"),
        ("--fine-grained-activation-offloading --offload-modules attn_proj", "core_attn with it"),
        ("--fine-grained-activation-offloading --offload-modules nonsense", "must be of"),
        ("--fine-grained-activation-offloading --cpu-offloading-num-layers 4", "one of the two"),
        ("--cpu-offloading-num-layers 4 --recompute-activations", "no recomputation"),
    ],
)
def test_offloading_that_megatron_refuses_is_refused(words: str, must: str, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT.format(words))
    with pytest.raises(InputError, match=must):
        read_launch(file)


def test_a_known_argument_without_a_price_is_not_called_unknown(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(SCRIPT.format("--activation-offload-fraction 0.5 --mystery 1"))
    reading = read_launch(file)
    assert reading.unpriced == ("--activation-offload-fraction 0.5",)
    assert reading.unknown == ("--mystery 1",)


def test_offloading_is_proposed_in_place_of_layers_computed_again() -> None:
    pricer = make_pricer(JOB, CLUSTER, None, None, None, None)
    plan = replace(PLAN, dims=ParallelDims(pp=4, dp=8, ep=8), recompute=Recompute.FULL)
    best = PricedPlan(plan=plan, step=step(JOB, plan, CLUSTER), footprint=footprint(JOB, plan, CLUSTER))
    found = {each.change: each.speedup for each in next_steps(pricer, best)}
    words = next(change for change in found if "in host memory" in change)
    modules = words.partition("offload_modules=")[2].rstrip(")")
    (choice,), _ = job_choices(JOB, CLUSTER.gpus, {"offload_modules": modules})
    kept = replace(plan, recompute=Recompute.NONE)
    assert float(step(choice.job, kept, CLUSTER).step_s) == pytest.approx(best.step_s / found[words])
    assert footprint(choice.job, kept, CLUSTER).device_bytes <= pricer.limit_bytes
