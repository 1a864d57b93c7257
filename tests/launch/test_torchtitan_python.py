"""torchtitan's configurations in Python: written, read without being run, and accepted by torchtitan's own parser."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from launch.package_index import fetched
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.launch.files import launch_files, read_launch, save_files
from sartor.launch.torchtitan_source import flavor_of, flavors, read_source
from sartor.model.counts import count_params
from sartor.model.editing import edit
from sartor.model.shape import Numerics, Value
from sartor.model.training import ContextParallel, Recompute, Trainer, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model

CLUSTER = load_cluster("dgx-h100")
CASES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {"recompute": Recompute.FULL},
    "llama-3.2-1b": {"trainer": Trainer(fused_kernels=True)},
    "llama-3.1-70b": {"dims": ParallelDims(tp=8, dp=4), "trainer": Trainer(tp_overlap=True, fused_kernels=True)},
    "llama-3.1-405b": {
        "dims": ParallelDims(tp=8, pp=6, dp=1),
        "virtual_stages": 3,
        "num_microbatches": 6,
        "global_batch_size": 12,
        "recompute": Recompute.FULL,
    },
    "qwen3-8b": {"dims": ParallelDims(cp=2, dp=4), "context_parallel": ContextParallel.ALL_GATHER},
    "qwen3-32b": {"dims": ParallelDims(tp=4, dp=8, sequence_parallel=False), "shard_group": 4},
    "qwen3-30b-a3b": {"dims": ParallelDims(dp=16, ep=8)},
    "deepseek-v3": {"dims": ParallelDims(dp=32, ep=32), "recompute": Recompute.FULL},
    "deepseek-v2-lite": {"dims": ParallelDims(pp=3, dp=8, ep=4), "stage_layers": (8, 10, 9)},
    "gpt-oss-20b": {"dims": ParallelDims(tp=2, dp=8, ep=4), "trainer": Trainer(splits_experts=False)},
}


def asked(name: str, **changes: Any) -> tuple[TrainingJob, TrainingPlan]:
    dims = changes.get("dims", ParallelDims(dp=8))
    job = TrainingJob(shape=load_model(name), seq_len=4096, global_batch_size=int(dims.dp) * 8)
    plan = TrainingPlan(dims=dims, microbatch_size=2, num_microbatches=4, zero_stage=3)
    fields = set(TrainingJob.__dataclass_fields__)
    job = replace(job, **{k: v for k, v in changes.items() if k in fields})
    return job, replace(plan, **{k: v for k, v in changes.items() if k not in fields})


@pytest.mark.parametrize("name", CASES)
def test_a_model_of_torchtitan_comes_back_with_all_it_computes(name: str, tmp_path: Path) -> None:
    job, plan = asked(name, **CASES[name])
    save_files(launch_files("torchtitan", job, plan, CLUSTER), tmp_path)
    again = read_launch(tmp_path)
    assert again.unknown == ()
    assert again.shape is not None
    assert again.shape.fields() == job.shape.fields()
    assert again.shape.mtp_layers == job.shape.mtp_layers
    assert again.shape.numerics is not None
    assert job.shape.numerics is not None
    left_to_torchtitan = {"aux_loss", "aux_loss_per_sequence", "router_bias", "rope_mscale", "activation"}
    found, given = (
        {k: v for k, v in each.unusual.items() if k not in left_to_torchtitan}
        for each in (again.shape.numerics, job.shape.numerics)
    )
    assert found == given


def test_a_flavor_that_computes_otherwise_is_said_or_refused() -> None:
    job, plan = asked("deepseek-v2")
    with pytest.raises(InputError, match="router_method=group_limited_greedy: torchtitan has"):
        launch_files("torchtitan", job, plan, CLUSTER)
    job, plan = asked("qwen3-30b-a3b")
    assert "balances experts in its own way" in "".join(launch_files("torchtitan", job, plan, CLUSTER).notes)
    job, plan = asked("llama-3.2-1b")
    with pytest.raises(InputError, match=r"rope_factor=8\.0, not 32\.0"):
        launch_files("torchtitan", job, plan, CLUSTER, "0.2.2")


OF_NOBODY: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {"num_layers": 20},
    "llama-3.2-1b": {"hidden_size": 1024, "num_heads": 16, "num_kv_heads": 4, "ffn_hidden_size": 3072},
    "tinyllama-1.1b": {"num_layers": 21},
    "qwen3-8b": {"num_layers": 30, "num_heads": 40},
    "qwen3-30b-a3b": {"num_experts": 64, "expert_ffn_hidden_size": 1536},
    "deepseek-v3": {"num_layers": 30, "num_experts": 128},
    "deepseek-v2-lite": {"num_layers": 20, "vocab_size": 102_656},
    "kimi-k2": {"num_layers": 20},
    "gpt-oss-20b": {"num_heads": 32, "num_kv_heads": 4, "hidden_size": 1440, "num_experts": 16},
}
"""Sizes that no flavor of torchtitan has, in families that it has."""


def of_nobody(name: str) -> tuple[TrainingJob, TrainingPlan]:
    job, plan = asked(name, recompute=Recompute.FULL)
    return replace(job, shape=replace(edit(job.shape, **OF_NOBODY[name]), mtp_layers=0)), plan


@pytest.mark.parametrize("name", OF_NOBODY)
def test_a_model_of_any_sizes_is_built_from_its_familys_classes_and_read_back(name: str, tmp_path: Path) -> None:
    job, plan = of_nobody(name)
    made = launch_files("torchtitan", job, plan, CLUSTER)
    assert "custom_model" not in made.files[0].text
    save_files(made, tmp_path)
    again = read_launch(tmp_path)
    assert again.unknown == ()
    assert again.shape is not None
    assert again.shape.fields() == job.shape.fields()
    assert again.shape.tied_embeddings is job.shape.tied_embeddings
    assert count_params(again.shape) == count_params(job.shape)


BUILT = """
import json, sys
import torch
from torchtitan.config.manager import ConfigManager
out = {{}}
for name in {names!r}:
    sys.path.insert(0, {folder!r} + "/" + name)
    sys.modules.pop("sartor_config", None)
    config = ConfigManager().parse_args(["--module", "sartor_config", "--config", "train"])
    with torch.device("meta"):
        out[name] = sum(p.numel() for p in config.model_spec.model.build().parameters())
    sys.path.pop(0)
print(json.dumps(out))
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.skipif(not all(map(find_spec, ("torch", "torchtitan"))), reason="wants torchtitan: make test-torch")
def test_torchtitan_builds_as_many_parameters_as_sartor_counts(tmp_path: Path) -> None:
    for name in OF_NOBODY:
        save_files(launch_files("torchtitan", *of_nobody(name), CLUSTER), tmp_path / name)
    source = BUILT.format(names=list(OF_NOBODY), folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    built = json.loads(done.stdout.splitlines()[-1])
    assert built == {name: int(count_params(of_nobody(name)[0].shape).total) for name in OF_NOBODY}


def test_a_model_with_other_parts_is_left_to_the_user() -> None:
    job, plan = asked("gemma-2-9b")
    job = replace(job, shape=replace(job.shape, numerics=None))
    made = launch_files("torchtitan", job, plan, CLUSTER)
    assert any("no family with these parts" in note for note in made.notes)
    assert "from custom_model import model_registry" in made.files[0].text


def test_plain_rotary_embeddings_are_written_to_a_flavor_that_scales_them() -> None:
    job, plan = asked("llama-3.1-8b")
    values: dict[str, Value] = {"activation": "silu", "norm_eps": 1e-5, "rope_theta": 500000.0}
    job = replace(job, shape=replace(job.shape, numerics=Numerics(values=values)))
    text = launch_files("torchtitan", job, plan, CLUSTER).files[0].text
    assert "'scaling': 'none'" in text
    assert "model_registry('8B')" in text


def test_every_flavor_is_found_by_its_sizes() -> None:
    for each in flavors():
        assert flavor_of(each.shape) == each


OWN = """
from torchtitan.models.llama3.config_registry import llama3_8b
from torchtitan.distributed.activation_checkpoint import FullAC

def mine():
    config = llama3_8b()
    config.training.seq_len = 16384
    config.training.local_batch_size = 1
    config.parallelism.context_parallel_degree = 2
    config.activation_checkpoint = FullAC.Config()
    config.training.steps = compute_steps()
    return config
"""


def test_a_configuration_on_top_of_torchtitans_own_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc_per_node=8 -m torchtitan.train --module mine --config mine --training.global_batch_size=64\n"
    )
    reading = read_launch(tmp_path / "run.sh")
    assert reading.shape is not None
    assert reading.shape.name == "Llama 3.1 8B"
    assert (reading.parts.seq_len, reading.parts.global_batch_size) == (16384, 64)
    assert (reading.plan.dims.cp, reading.plan.dims.dp) == (2, 4)
    assert reading.plan.recompute is Recompute.FULL
    assert reading.unknown == ("training.steps=compute_steps()",)


def test_a_named_configuration_has_the_values_torchtitan_gives_it(tmp_path: Path) -> None:
    script = "torchrun --nproc_per_node=8 --nnodes 4 -m torchtitan.train --module llama3 --config llama3_70b"
    (tmp_path / "run.sh").write_text(f"{script} --training.local-batch-size 4\n")
    reading = read_launch(tmp_path / "run.sh")
    assert reading.shape is not None
    assert int(reading.shape.num_layers) == 80
    assert (reading.plan.dims.tp, reading.plan.dims.dp, reading.plan.microbatch_size) == (8, 4, 4)
    (tmp_path / "run.sh").write_text(script.replace("llama3_70b", "llama3_71b") + "\n")
    with pytest.raises(InputError, match="llama3_8b"):
        read_launch(tmp_path / "run.sh")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("def train(:", "must be valid Python"), ("x = 1\n", "must be a function of"), ("\0", "must be valid Python")],
)
def test_a_module_that_holds_no_configuration_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_source(text, "train", "mine.py")


def test_an_odd_literal_is_no_warning() -> None:
    assert read_source("def train():\n    return 1if 1else 2\n", "train", "mine.py").values == {}


def test_a_module_is_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    made = "def train():\n    return Trainer.Config(training=TrainingConfig(seq_len=1))\n"
    text = f"open({str(trap)!r}, 'w').write('x')\n{made}"
    assert read_source(text, "train", "mine.py").values == {"training.seq_len": 1}
    assert not trap.exists()


@pytest.mark.parametrize(
    ("version", "says"),
    [("0.1", "--multi-latent-attention since 0.10"), ("0.10", "since 0.1[12]"), ("", ""), ("0.16", "")],
)
def test_an_argument_newer_than_the_version_named_is_refused(version: str, says: str) -> None:
    job, plan = asked("deepseek-v3", dims=ParallelDims(dp=8, ep=8))
    if not says:
        assert launch_files("megatron", job, plan, CLUSTER, version).files
        return
    with pytest.raises(InputError, match=says):
        launch_files("megatron", job, plan, CLUSTER, version)


@pytest.mark.parametrize(("kind", "version"), [("deepspeed", "0.16"), ("megatron", "newest"), ("torchtitan", "1.2.x")])
def test_a_version_that_is_none_is_refused(kind: str, version: str) -> None:
    job, plan = asked("llama-3.1-8b", zero_stage=2)
    with pytest.raises(InputError, match=r"^trainer_version="):
        launch_files(kind, job, plan, CLUSTER, version)


JUDGE = """
import json, sys
sys.path[:0] = [{here!r}, {site!r}]
import torch_shells
from torchtitan.config.manager import ConfigManager
from torchtitan.models.common import RMSNorm, RoPE
out = {{}}
for name in {names!r}:
    sys.path.insert(0, {folder!r} + "/" + name)
    sys.modules.pop("sartor_config", None)
    config = ConfigManager().parse_args(["--module", "sartor_config", "--config", "train"])
    model = config.model_spec.model
    parts = list(model.traverse(RMSNorm.Config, recurse=True)), list(model.traverse(RoPE.Config, recurse=True))
    out[name] = [len(model.layers), config.training.seq_len, config.parallelism.tensor_parallel_degree,
                 sorted({{p.eps for _, p, _, _ in parts[0]}}), sorted({{p.theta for _, p, _, _ in parts[1]}})]
    sys.path.pop(0)
print(json.dumps(out))
"""


@pytest.mark.slow
def test_torchtitans_own_parser_accepts_every_file(tmp_path: Path) -> None:
    site = tmp_path / "site"
    fetched(site, "torchtitan==0.3.0")
    fetched(site, "tyro", needs=True)
    for name, changes in CASES.items():
        save_files(launch_files("torchtitan", *asked(name, **changes), CLUSTER), tmp_path / name)
    values = {"here": str(Path(__file__).parent), "site": str(site), "folder": str(tmp_path), "names": list(CASES)}
    done = subprocess.run([sys.executable, "-c", JUDGE.format(**values)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for name, changes in CASES.items():
        job, plan = asked(name, **changes)
        assert job.shape.numerics is not None
        layers, seq_len, tp, eps, theta = found[name]
        assert (layers, seq_len, tp) == (int(job.shape.num_layers), 4096, plan.dims.tp)
        assert eps == [job.shape.numerics.get("norm_eps")]
        assert theta == [job.shape.numerics.get("rope_theta")]


@pytest.mark.parametrize(("name", "norm"), [("gpt2-small", "LayerNorm"), ("qwen3-0.6b", "RMSNorm")])
def test_epsilon_is_set_on_the_models_own_norms(name: str, norm: str) -> None:
    job = TrainingJob(shape=load_model(name), seq_len=1024, global_batch_size=64)
    plan = TrainingPlan(dims=ParallelDims(dp=8), num_microbatches=8, zero_stage=3)
    (text, _) = (file.text for file in launch_files("torchtitan", job, plan, load_cluster("dgx-h100")).files)
    other = {"LayerNorm": "RMSNorm", "RMSNorm": "LayerNorm"}[norm]
    assert f"{norm.upper()} = {{'eps': " in text
    assert f"traverse({norm}.Config" in text
    assert other not in text
