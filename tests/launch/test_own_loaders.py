"""accelerate and DeepSpeed load what is written for them, each by its own code (torch is an empty shell)."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launch.package_index import fetched
from sartor.hardware.cluster_catalog import load_cluster
from sartor.launch.files import launch_files, save_files
from sartor.model.training import Optimizer, Recipe, Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model

CLUSTER = load_cluster("dgx-h100")
ACCELERATE: dict[str, dict[str, Any]] = {
    "sharded": {"zero_stage": 3},
    "kept": {"zero_stage": 2, "recompute": Recompute.FULL},
    "hybrid": {"zero_stage": 3, "shard_group": 4},
    "tensors": {"dims": ParallelDims(tp=8, sequence_parallel=False), "num_microbatches": 8},
    "both": {"dims": ParallelDims(tp=2, dp=4, sequence_parallel=False), "zero_stage": 3, "num_microbatches": 2},
    "contexts": {"dims": ParallelDims(cp=2, dp=4), "zero_stage": 3, "num_microbatches": 2},
    "replicated": {"zero_stage": 0, "recipe": Recipe.FP16},
    "offloaded": {"zero_stage": 3, "optimizer_offload": True},
}
DEEPSPEED: dict[str, dict[str, Any]] = {
    **{f"stage {stage}": {"zero_stage": stage} for stage in range(4)},
    "offloaded": {"zero_stage": 2, "optimizer_offload": True},
    "tensors": {
        "dims": ParallelDims(tp=2, dp=4, sequence_parallel=False),
        "zero_stage": 1,
        "num_microbatches": 2,
    },
    "muon": {"zero_stage": 1, "optimizer": Optimizer.MUON, "recipe": Recipe.BF16},
}


def write_all(kind: str, cases: dict[str, dict[str, Any]], folder: Path) -> None:
    for name, changes in cases.items():
        fields = set(TrainingJob.__dataclass_fields__)
        job = TrainingJob(shape=load_model("llama-3.1-8b"), seq_len=4096, global_batch_size=8)
        job = replace(job, **{k: v for k, v in changes.items() if k in fields})
        plan = TrainingPlan(dims=ParallelDims(dp=8))
        plan = replace(plan, **{k: v for k, v in changes.items() if k not in fields})
        save_files(launch_files(kind, job, plan, CLUSTER), folder / name)


def judged(code: str, folder: Path, names: list[str]) -> str:
    here = str(Path(__file__).parent)
    head = (
        f"import sys; sys.path[:0] = [{here!r}, {str(folder / 'site')!r}]\nFOLDER, NAMES = {str(folder)!r}, {names!r}"
    )
    script = f"{head}\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


LAUNCH = """
import importlib.metadata as metadata
import torch_shells
torch_shells.NAMES |= {"deepspeed", "huggingface_hub", "psutil", "safetensors"}
torch_shells.NAMES -= {"numpy"}
known = metadata.version
shells = ("torch", "torchvision", "deepspeed", "huggingface_hub", "safetensors")
metadata.version = lambda name: "2.9.0" if name in shells else known(name)
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
for name in NAMES:
    asked = ["--config_file", f"{FOLDER}/{name}/accelerate.yaml", "train.py"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(asked))
    print(name, args.num_processes, bool(args.use_fsdp), args.parallelism_config_tp_size, sep="|")
"""


@pytest.mark.slow
def test_accelerate_takes_every_file(tmp_path: Path) -> None:
    fetched(tmp_path / "site", "accelerate==1.15.0")
    write_all("accelerate", ACCELERATE, tmp_path)
    lines = judged(LAUNCH, tmp_path, list(ACCELERATE)).splitlines()
    found = {name: rest for name, *rest in (line.split("|") for line in lines)}
    assert set(found) == set(ACCELERATE)
    assert found["both"] == ["8", "True", "2"]
    assert found["tensors"] == ["8", "True", "8"]
    assert found["replicated"][1] == "False"


ZERO = """
import json, pathlib, types
import torch_shells
torch_shells.NAMES -= {"numpy"}
torch_shells.NAMES |= {"hjson", "psutil", "cpuinfo", "ninja", "msgpack"}
root = next(pathlib.Path(FOLDER, "site").glob("deepspeed-*")) / "deepspeed"
for name in ("", ".runtime", ".runtime.zero", ".utils"):
    module = types.ModuleType("deepspeed" + name)
    module.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    sys.modules[module.__name__] = module
sys.modules["deepspeed.utils"].logger = torch_shells.Thing()
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
for name in NAMES:
    config = json.loads(pathlib.Path(FOLDER, name, "ds_config.json").read_text())
    print(name, DeepSpeedZeroConfig(**config["zero_optimization"]).stage, config["optimizer"]["params"]["lr"], sep="|")
"""


@pytest.mark.slow
def test_deepspeed_takes_every_sharding(tmp_path: Path) -> None:
    site = tmp_path / "site"
    fetched(site, "deepspeed==0.19.8", verb="download")
    archives = list(site.glob("deepspeed-*.tar.gz"))
    subprocess.run(["tar", "-xzf", str(archives[0]), "-C", str(site)], check=True)
    archives[0].unlink()
    write_all("deepspeed", DEEPSPEED, tmp_path)
    lines = judged(ZERO, tmp_path, list(DEEPSPEED)).splitlines()
    assert [line.split("|")[0] for line in lines] == list(DEEPSPEED)
    assert all(line.endswith("|auto") for line in lines)
