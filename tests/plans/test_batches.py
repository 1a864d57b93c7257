"""`plan` names the global batches next to the stated one that the devices divide, if they train faster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import sartor
from sartor.hardware.cluster_catalog import load_cluster
from sartor.model.training import TrainingJob
from sartor.model.zoo import load_model
from sartor.plans import next as next_plans
from sartor.report.fit_words import headline as first_lines
from sartor.report.plan_words import plan_lines


@pytest.fixture(scope="module")
def sixty() -> sartor.PlanAnswer:
    """512 sequences on 60 devices: 15 does not divide them, so that no plan has 60 replicas, or 30."""
    return sartor.plan("llama-3-8b", "dgx-h100", num_devices=60, global_batch_size=512)


def test_a_batch_that_the_devices_divide_is_named_with_its_gain(sixty: sartor.PlanAnswer) -> None:
    below, above = sixty.batches
    assert (below.global_batch_size, above.global_batch_size) == (480, 540)
    assert sixty.best is not None
    for batch in sixty.batches:
        alone = sartor.plan("llama-3-8b", "dgx-h100", num_devices=60, global_batch_size=batch.global_batch_size)
        assert alone.best == batch.priced  # what plan answers for that batch
        assert alone.batches == ()
        tokens = batch.global_batch_size / batch.priced.step_s
        assert batch.speedup == pytest.approx(tokens / (512 / sixty.best.step_s))
        assert batch.speedup > 1.3
        assert int(batch.priced.plan.dims.dp) % 15 == 0
    said = " ".join(plan_lines(sixty))
    assert f"A batch of 480 would train {below.speedup:.2f}x as many tokens per second (" in said


def test_the_json_has_the_batches_with_their_plans(sixty: sartor.PlanAnswer) -> None:
    rows = sixty.to_dict()["batches"]
    assert [row["global_batch_size"] for row in rows] == [480, 540]
    assert [row["plan"]["dp"] % 15 for row in rows] == [0, 0]
    for row in rows:
        rate = row["global_batch_size"] * 4096 / row["step_s"] / 60
        assert row["tokens_per_s_per_device"] == pytest.approx(rate)


def test_every_command_about_the_shape_names_the_batches_of_plan(sixty: sartor.PlanAnswer) -> None:
    run = {"cluster": "dgx-h100", "num_devices": 60, "global_batch_size": 512}
    estimate = sartor.estimate("llama-3-8b", **run)
    bases = (estimate, sartor.lint("llama-3-8b", **run).base, sartor.advise("llama-3-8b", top=1, **run).base)
    for base in bases:
        assert base.batches == sixty.batches
        assert "A batch of 480 would train" in list(first_lines(base, "Keep this shape."))[2]
    assert estimate.to_dict()["batches"] == sixty.to_dict()["batches"]
    assert sartor.estimate("llama-3-8b", **run | {"global_batch_size": 480}).batches == ()


@pytest.mark.parametrize(("devices", "batch"), [(8, 32), (8, 12), (64, 72), (12, 1), (1, 3)])
def test_no_batch_is_tried_where_the_devices_divide_it_or_none_is_near(devices: int, batch: int) -> None:
    """Of 12 on 8 devices, four divide it, and the other two are tensor or pipeline parallel without a loss."""
    answer = sartor.plan("gpt2-large", "dgx-h100", num_devices=devices, global_batch_size=batch)
    assert answer.best is not None
    assert answer.batches == ()
    assert "would train" not in " ".join(plan_lines(answer))


def test_a_batch_keeps_what_was_stated_of_the_plan() -> None:
    """With four replicas stated, a batch of 60 or 72 on 12 devices still has four; a batch of 64 loses nothing."""
    answer = sartor.plan("gpt2-large", "dgx-h100", num_devices=12, global_batch_size=64, fix={"dp": 4})
    assert all(int(batch.priced.plan.dims.dp) == 4 for batch in answer.batches)
    free = sartor.plan("gpt2-large", "dgx-h100", num_devices=12, global_batch_size=64)
    assert {batch.global_batch_size for batch in free.batches} <= {60, 72}
    assert any(int(batch.priced.plan.dims.dp) == 12 for batch in free.batches)


@pytest.mark.parametrize(
    ("batch", "devices", "nearness", "near"),
    [
        (64, 48, 0.25, (48,)),  # at the limit, which 96 is beyond
        (80, 96, 0.25, (96,)),  # fewer sequences than devices
        (80, 96, 0.05, (78,)),  # a multiple of a sixteenth of the devices, as none of more of them is near
        (512, 64, 0.25, ()),  # which the devices divide
    ],
)
def test_near_batches_are_multiples_of_the_devices_or_of_a_part_of_them(
    batch: int, devices: int, nearness: float, near: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(next_plans, "NEAR_BATCH", nearness)
    assert next_plans._near_batches(batch, devices) == near


def test_a_batch_is_named_from_the_gain_that_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 sequences in the 8 s of 64 train 1.25 times as many tokens per second."""
    monkeypatch.setattr(next_plans, "_near_batches", lambda *_: (80,))
    monkeypatch.setattr(next_plans, "fastest_plan", lambda *_, **__: SimpleNamespace(step_s=8.0))
    job: Any = TrainingJob(shape=load_model("gpt2"), seq_len=1024, global_batch_size=64)
    best: Any = SimpleNamespace(plan=SimpleNamespace(num_devices=60), step_s=8.0)
    for worth, named in ((0.25, 1), (0.26, 0), (0.0, 1), (-0.25, 1)):
        monkeypatch.setattr(next_plans, "WORTH_ANOTHER_BATCH", worth)
        batches = next_plans.divided_batches(job, load_cluster("dgx-h100"), best, {}, None, None)
        assert len(batches) == named
    assert batches[0].speedup == 1.25
