"""What the search looks at under ``--write`` is what the launch files can say."""

from __future__ import annotations

import numpy as np
import pytest
from tests.effort import times

from sartor import api
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.launch.files import launch_files
from sartor.launch.plan import LaunchKind
from sartor.model.zoo import load_model
from sartor.plans.conditions import structures, with_switches
from sartor.plans.space import plan_at, plan_space, size_of, take
from sartor.step.question import training_job, within_files

CLUSTER = load_cluster("dgx-h100")
MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3")


@pytest.mark.parametrize("kind", list(LaunchKind), ids=lambda kind: kind.value)
@pytest.mark.parametrize(("devices", "seq_len"), [(16, 4096), (24, 32768)])
@pytest.mark.parametrize("model", MODELS)
def test_every_plan_that_is_searched_can_be_written(kind: LaunchKind, devices: int, seq_len: int, model: str) -> None:
    words = {"global_batch_size": 96, "seq_len": seq_len, "framework": kind.value}
    job = within_files(training_job(load_model(model), CLUSTER.gpus, **words)[0], kind.value)
    space, some = plan_space(job, devices, {}), np.random.default_rng(devices).choice
    rows = structures(job, space).rows
    rows = with_switches(job, space, take(rows, some(size_of(rows), min(50, size_of(rows)), replace=False)), {})
    tried = some(size_of(rows), min(times(25, 1000), size_of(rows)), replace=False)
    assert len(tried)
    for index in tried.tolist():
        assert launch_files(kind, job, plan_at(job, rows, index), CLUSTER).files


@pytest.mark.parametrize("kind", list(LaunchKind), ids=lambda kind: kind.value)
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
    made, priced = api.launch(answer, kind.value)
    assert priced is answer.best
    assert not any("cannot run the best plan" in note for note in made.notes)


def test_a_degree_that_the_files_cannot_say_is_refused_with_its_reason() -> None:
    asked = {"num_devices": 16, "global_batch_size": 64, "seq_len": 4096}
    with pytest.raises(InputError, match="deepspeed has no pipeline"):
        api.plan("llama-3.1-8b", **asked, framework="deepspeed", write="deepspeed", fix={"pp": 2})
