"""Every plan a framework can run is written, read back, and equal; what it cannot run is refused in one sentence."""

from __future__ import annotations

import csv
import json
import re
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.launch.files import launch_files, read_launch, save_files
from sartor.launch.plan import WRITTEN, LaunchFiles, LaunchKind, LaunchReading, canonical, even_stages
from sartor.launch.stated import read_yaml
from sartor.launch.torchtitan_source import read_source
from sartor.model.counts import count_params
from sartor.model.editing import edit
from sartor.model.training import (
    ContextParallel,
    Optimizer,
    PipelineSchedule,
    Recipe,
    Recompute,
    Trainer,
    TrainingJob,
    TrainingPlan,
)
from sartor.model.workload import AttentionKernel, Loss, ParallelDims
from sartor.model.zoo import load_model
from sartor.units import round_up

CLUSTER = load_cluster("dgx-h100")
DENSE = load_model("llama-3.1-8b")
MOE = replace(load_model("deepseek-v3"), mtp_layers=0)


ANY: dict[str, tuple[Any, ...]] = {
    "degree": (1, 2, 4),
    "pp": (1, 2, 4),
    "ep": (1, 2, 4),
    "cp": (1, 2, 4),
    "virtual": (1, 2, 3),
    "recipe": tuple(Recipe),
    "optimizer": tuple(Optimizer),
    "exchange": tuple(ContextParallel),
    "schedule": tuple(PipelineSchedule),
    "zero": (0, 1, 2, 3),
    "recompute": tuple(Recompute),
    "layers": (-1, 1, 2, 3),
    "sequence": (True, False),
    "hybrid": (True, False),
    "offload": (True, False),
    "uneven": (True, False),
}
ABLE: dict[LaunchKind, dict[str, tuple[Any, ...]]] = {
    LaunchKind.MEGATRON: {
        "schedule": (PipelineSchedule.ONE_F_ONE_B,),
        "recipe": (Recipe.BF16, Recipe.FP16, Recipe.FP32, Recipe.FP8_DELAYED, Recipe.MXFP8, Recipe.NVFP4),
        "layers": (-1, 6, 12),
    },
    LaunchKind.MEGATRON_BRIDGE: {
        "schedule": (PipelineSchedule.ONE_F_ONE_B,),
        "recipe": (Recipe.BF16, Recipe.FP16, Recipe.FP8_DELAYED, Recipe.MXFP8, Recipe.NVFP4),
        "layers": (-1, 6, 12),
    },
    LaunchKind.TORCHTITAN: {
        "zero": (2, 3),
        "exchange": (ContextParallel.ALL_GATHER,),
        "recipe": (Recipe.BF16, Recipe.FP32, Recipe.FP8_ROWWISE, Recipe.MXFP8, Recipe.NVFP4),
        "optimizer": (Optimizer.ADAM,),
        "recompute": (Recompute.NONE, Recompute.FULL),
        "virtual": (1, 2),
        "schedule": (PipelineSchedule.ONE_F_ONE_B,),
        "layers": (-1,),
        "splits": (False,),
    },
    LaunchKind.DEEPSPEED: {
        "pp": (1,),
        "cp": (1,),
        "ep": (1,),
        "zero": (0, 1, 2),
        "sequence": (False,),
        "recipe": (Recipe.BF16, Recipe.FP16, Recipe.FP32),
        "recompute": (Recompute.NONE, Recompute.FULL),
        "layers": (-1,),
        "hybrid": (False,),
        "offload": (False,),
    },
    LaunchKind.ACCELERATE: {
        "pp": (1,),
        "ep": (1,),
        "zero": (2, 3),
        "sequence": (False,),
        "recipe": (Recipe.BF16, Recipe.FP16, Recipe.FP32, Recipe.FP8_DELAYED),
        "recompute": (Recompute.NONE, Recompute.FULL),
        "layers": (-1,),
        "exchange": (ContextParallel.RING, ContextParallel.ALL_GATHER),
        "optimizer": (Optimizer.ADAM, Optimizer.SGD),
    },
}
"""What each framework can run, for three plans in four; the fourth may ask for anything."""
BEFORE = {
    **ABLE[LaunchKind.TORCHTITAN],
    "sequence": (True,),
    "exchange": (ContextParallel.RING, ContextParallel.ALL_GATHER),
    "recipe": (Recipe.BF16, Recipe.FP32, Recipe.FP8_CURRENT, Recipe.FP8_ROWWISE, Recipe.MXFP8),
    "layers": (-1, 1, 2),
    "splits": (True, False),
}
"""What torchtitan ran while its configurations were TOML."""


SWITCHES = ("dispatch_once", "ep_overlap", "grad_fusion")
"""Of a trainer, where they mean something: said by Megatron's arguments alone."""


@st.composite
def plans(draw: st.DrawFn, kind: LaunchKind, version: str = "") -> tuple[TrainingJob, TrainingPlan]:
    """A job and a plan of it, on whole nodes or a part of one."""
    menu = ANY if draw(st.integers(0, 3)) == 0 else {**ANY, **(BEFORE if version else ABLE[kind])}

    def pick(name: str) -> Any:
        return draw(st.sampled_from(menu[name]))

    shape = draw(st.sampled_from((DENSE, MOE, edit(DENSE, num_layers=draw(st.integers(4, 40))))))
    tp, pp, dp, cp = pick("degree"), pick("pp"), pick("degree"), pick("cp")
    assume(tp * pp * dp * cp <= 8 or tp * pp * dp * cp % 8 == 0)
    ep = pick("ep") if shape is MOE else 1
    splits = draw(st.sampled_from(menu.get("splits", (True, False))))
    assume((dp * cp * (1 if splits else tp)) % ep == 0)
    virtual = pick("virtual") if pp > 1 else 1
    layers = int(shape.num_layers)
    assume(pp * virtual <= layers)
    micro, count = draw(st.integers(1, 4)), draw(st.integers(1, 6)) * (pp if virtual > 1 else 1)
    stages = even_stages(layers, pp * virtual)
    if pp > 1 and pick("uneven"):
        moved = draw(st.integers(0, len(stages) - 1))
        stages = tuple(n - (k == moved) + (k == (moved + 1) % len(stages)) for k, n in enumerate(stages))
        assume(min(stages) >= 0)
    job = TrainingJob(
        shape=shape,
        seq_len=4096,
        global_batch_size=dp * micro * count,
        recipe=pick("recipe"),
        optimizer=pick("optimizer"),
        attention_kernel=draw(st.sampled_from(list(AttentionKernel)[: 1 if cp > 1 else 2])),
        context_parallel=pick("exchange"),
        trainer=Trainer(
            dp_overlap=draw(st.booleans()),
            fused_kernels=kind is LaunchKind.MEGATRON_BRIDGE or draw(st.booleans()),
            splits_experts=splits,
            **{name: draw(st.booleans()) for name in SWITCHES},
            fused_loss=Loss.FUSED if draw(st.booleans()) else Loss.UNFUSED,
        ),
    )
    plan = TrainingPlan(
        dims=ParallelDims(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, sequence_parallel=pick("sequence")),
        microbatch_size=micro,
        num_microbatches=count,
        virtual_stages=virtual,
        schedule=pick("schedule"),
        zero_stage=pick("zero"),
        shard_group=cp * draw(st.sampled_from((1, dp))) if pick("hybrid") else 0,
        recompute=pick("recompute"),
        recompute_layers=pick("layers"),
        optimizer_offload=pick("offload"),
        stage_layers=stages if pp > 1 and pick("uneven") else None,
    )
    return job, plan


def written(kind: LaunchKind, job: TrainingJob, plan: TrainingPlan, version: str = "") -> LaunchFiles | None:
    refusal = None
    try:
        return launch_files(kind, job, plan, CLUSTER, version)
    except InputError as error:
        refusal = error
    assert refusal.nearest, f"no way out: {refusal}"
    return None


@pytest.mark.parametrize(("kind", "version"), [*((kind, "") for kind in WRITTEN), (LaunchKind.TORCHTITAN, "0.2.2")])
def test_a_plan_written_and_read_back_is_the_same_plan(
    kind: LaunchKind, version: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    counted: Counter[bool] = Counter()

    @settings(max_examples=60 if version else 150, deadline=None)
    @given(asked=plans(kind, version))
    def law(asked: tuple[TrainingJob, TrainingPlan]) -> None:
        job, plan = asked
        made = written(kind, job, plan, version)
        counted[made is not None] += 1
        if made is not None:
            folder = tmp_path_factory.mktemp(kind.value)
            save_files(made, folder)
            same_again(read_launch(folder, shape=job.shape), job, plan)

    law()
    assert counted[True] > counted.total() / 10, "too few of the plans could be written to say much"


OF_MEGATRON = (LaunchKind.MEGATRON, LaunchKind.MEGATRON_BRIDGE)


def same_again(reading: LaunchReading, job: TrainingJob, plan: TrainingPlan) -> None:
    assert reading.plan == canonical(plan, int(job.shape.num_layers))
    assert (*reading.unknown, *reading.unpriced) == ()
    again = reading.job(job.shape, 4096)
    if reading.kind in OF_MEGATRON:
        assert again.trainer.grad_fusion is (job.trainer.grad_fusion or reading.plan.zero_stage > 1)
        assert again.trainer.fused_loss is job.trainer.fused_loss
    if reading.kind in OF_MEGATRON and plan.dims.ep > 1:
        assert again.trainer.dispatch_once is job.trainer.dispatch_once
        assert again.trainer.ep_overlap is (job.trainer.ep_overlap and plan.virtual_stages > 1)
    assert (again.seq_len, again.global_batch_size) == (4096, job.global_batch_size)
    assert (again.recipe, again.optimizer) == (job.recipe, job.optimizer)
    if plan.dims.cp > 1:
        assert again.context_parallel is job.context_parallel
    says = reading.kind in OF_MEGATRON or (reading.kind is LaunchKind.TORCHTITAN and plan.dims.ep > 1)
    if says and job.shape.moe_ffn is not None and plan.dims.tp > 1:
        assert again.trainer.splits_experts is job.trainer.splits_experts


KINDS_OF_PLAN = {
    LaunchKind.MEGATRON: {"zero_stage": 1},
    LaunchKind.MEGATRON_BRIDGE: {"zero_stage": 1},
    LaunchKind.TORCHTITAN: {"zero_stage": 3},
    LaunchKind.DEEPSPEED: {"zero_stage": 2},
    LaunchKind.ACCELERATE: {"zero_stage": 3},
}


def plain(kind: LaunchKind, **changes: Any) -> tuple[TrainingJob, TrainingPlan]:
    """A job and a plan that the framework runs, with changes to either."""
    fields = set(TrainingJob.__dataclass_fields__)
    job = TrainingJob(shape=DENSE, seq_len=4096, global_batch_size=64)
    plan = TrainingPlan(dims=ParallelDims(dp=8), microbatch_size=2, num_microbatches=4, **KINDS_OF_PLAN[kind])
    job = replace(job, **{k: v for k, v in changes.items() if k in fields})
    return job, replace(plan, **{k: v for k, v in changes.items() if k not in fields})


@pytest.mark.parametrize(
    "name", ["llama-3.1-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v3", "qwen3-8b", "gpt-oss-20b"]
)
def test_a_model_written_for_megatron_reads_back_with_the_same_parameters(name: str, tmp_path: Path) -> None:
    shape = load_model(name)
    shape = edit(shape, vocab_size=int(round_up(shape.vocab_size, 128)))
    length = min(4096, int(shape.learned_positions) or 4096)
    job, plan = plain(LaunchKind.MEGATRON, shape=shape, seq_len=length)
    save_files(launch_files("megatron", job, plan, CLUSTER), tmp_path)
    reading = read_launch(tmp_path)
    assert reading.shape is not None
    assert reading.shape.fields() == shape.fields()
    share = count_params(reading.shape).total / count_params(shape).total
    assert share == pytest.approx(1.0, abs=2e-3), "all but norms and biases of a family's own"


@pytest.mark.parametrize(
    ("kind", "changes", "sentence"),
    [
        (
            "megatron",
            {"schedule": PipelineSchedule.ZERO_BUBBLE, "dims": ParallelDims(pp=2, dp=8)},
            "schedule=zero_bubble",
        ),
        ("megatron", {"recipe": Recipe.FP8_ROWWISE}, "recipe=fp8_rowwise"),
        ("megatron", {"seq_len": 4100, "dims": ParallelDims(cp=4, dp=8)}, "cp=4: seq_len does not split"),
        ("torchtitan", {"zero_stage": 1}, "zero_stage=1"),
        ("torchtitan", {"recipe": Recipe.FP8_CURRENT}, "recipe=fp8_current"),
        ("torchtitan", {"shape": load_model("deepseek-v3"), "dims": ParallelDims(pp=2, dp=8)}, "pp=2"),
        ("torchtitan", {"optimizer": Optimizer.MUON}, "optimizer=muon"),
        ("torchtitan", {"recompute": Recompute.SELECTIVE}, "recompute=selective"),
        ("deepspeed", {"dims": ParallelDims(pp=2, dp=8)}, "pp=2"),
        ("accelerate", {"dims": ParallelDims(pp=2, dp=8)}, "pp=2"),
        ("accelerate", {"zero_stage": 1}, "zero_stage=1"),
        ("megatron", {"global_batch_size": 63}, "global_batch_size=63"),
        ("megatron", {"dims": ParallelDims(dp=12), "global_batch_size": 96}, "num_devices=12"),
    ],
)
def test_what_a_framework_cannot_run_is_named_with_the_nearest_it_can(
    kind: str, changes: dict[str, Any], sentence: str
) -> None:
    job, plan = plain(LaunchKind(kind), **changes)
    with pytest.raises(InputError) as caught:
        launch_files(kind, job, plan, CLUSTER)
    assert str(caught.value).startswith(sentence)
    assert caught.value.nearest


@pytest.mark.parametrize("kind", list(WRITTEN), ids=lambda kind: kind.value)
def test_a_sequence_longer_than_the_learned_positions_is_refused(kind: LaunchKind) -> None:
    job, plan = plain(kind, shape=load_model("gpt2-small"), seq_len=2048)
    with pytest.raises(InputError, match="seq_len=2048: the model has 1024 learned positions"):
        launch_files(kind, job, plan, CLUSTER)


def test_a_framework_nobody_knows_is_refused() -> None:
    job, plan = plain(LaunchKind.MEGATRON)
    with pytest.raises(InputError, match="must be one of megatron, megatron-bridge, torchtitan, deepspeed, accelerate"):
        launch_files("horovod", job, plan, CLUSTER)


def test_files_that_are_there_are_left_alone_unless_told(tmp_path: Path) -> None:
    job, plan = plain(LaunchKind.MEGATRON)
    (path,) = save_files(launch_files("megatron", job, plan, CLUSTER), tmp_path)
    before = path.read_bytes()
    assert save_files(launch_files("megatron", job, plan, CLUSTER), tmp_path) == (path,), (
        "the same content is no conflict"
    )
    path.write_text("mine")
    with pytest.raises(InputError, match="is there with other content"):
        save_files(launch_files("megatron", job, plan, CLUSTER), tmp_path)
    assert path.read_text() == "mine"
    save_files(launch_files("megatron", job, plan, CLUSTER), tmp_path, overwrite=True)
    assert path.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["launch.sh"], "nothing half written stays behind"


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    job, plan = plain(LaunchKind.MEGATRON)
    with pytest.raises(InputError, match="must be a folder that can be written"):
        save_files(launch_files("megatron", job, plan, CLUSTER), tmp_path / "file" / "inside")


@pytest.mark.parametrize("kind", [kind for kind in WRITTEN if kind is not LaunchKind.MEGATRON_BRIDGE])
def test_every_name_written_is_the_frameworks_own(kind: LaunchKind, repo_dir: Path) -> None:
    with (repo_dir / "tests" / "golden" / "launch_arguments.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    known = {row["name"] for row in rows}
    assert all(row["source"] and row["date"] for row in rows)
    seen = set()
    for changes in VARIANTS:
        job, plan = plain(kind, **changes)
        for version in ("", "0.2.2") if kind is LaunchKind.TORCHTITAN else ("",):
            made = written(kind, job, plan, version)
            for file_ in made.files if made else ():
                seen |= set(names_in(file_.name, file_.text))
    assert len(seen) > 15
    assert not seen - known, f"not in tests/golden/launch_arguments.csv: {sorted(seen - known)}"


VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"shape": MOE, "dims": ParallelDims(tp=2, pp=2, dp=4, cp=2, ep=4), "global_batch_size": 32, "virtual_stages": 2},
    {"shape": MOE, "dims": ParallelDims(pp=2, dp=8), "stage_layers": (30, 31)},
    {"shape": load_model("gpt-oss-20b"), "recipe": Recipe.NVFP4},
    {"recipe": Recipe.FP16, "optimizer": Optimizer.SGD, "recompute": Recompute.FULL, "recompute_layers": 8},
    {"recipe": Recipe.FP8_CURRENT, "recompute": Recompute.FULL, "zero_stage": 3, "shard_group": 4},
    {"recipe": Recipe.MXFP8, "recompute": Recompute.SELECTIVE, "zero_stage": 3, "optimizer_offload": True},
    {"dims": ParallelDims(tp=4, dp=8, sequence_parallel=False), "zero_stage": 1, "optimizer_offload": True},
    {"dims": ParallelDims(tp=4, dp=8), "trainer": Trainer(tp_overlap=True, cuda_graphs=True, fused_kernels=False)},
    {"dims": ParallelDims(pp=4, dp=8), "virtual_stages": 2, "trainer": Trainer(p2p_overlap=False)},
    {"dims": ParallelDims(pp=4, dp=8), "stage_layers": (7, 9, 9, 7)},
    {
        "shape": MOE,
        "dims": ParallelDims(pp=2, dp=16, ep=8),
        "global_batch_size": 32,
        "virtual_stages": 2,
        "trainer": Trainer(dispatch_once=True, ep_overlap=True, grad_fusion=False, fused_loss=Loss.FUSED),
    },
    {"dims": ParallelDims(cp=2, dp=8), "context_parallel": ContextParallel.ALL_GATHER, "dropout": True},
)


def names_in(name: str, text: str) -> list[str]:
    """Argument and field names of a launch file."""
    if name.endswith(".sh"):
        return re.findall(r"^ +(--[\w.-]+)", text, flags=re.MULTILINE) and [
            n if n != "--job.config_file" else "job.config_file"
            for n in re.findall(r"^ +(--[\w.-]+)", text, flags=re.MULTILINE)
        ]
    if name.endswith(".py"):
        return list(read_source(text, "train", name).values)
    value = (
        tomllib.loads(text)
        if name.endswith(".toml")
        else json.loads(text)
        if name.endswith(".json")
        else read_yaml(text)
    )
    return paths(value)


def paths(value: dict[str, Any], prefix: str = "") -> list[str]:
    out: list[str] = []
    for key, item in value.items():
        out += paths(item, f"{prefix}{key}.") if isinstance(item, dict) and item else [f"{prefix}{key}"]
    return out
