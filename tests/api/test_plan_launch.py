"""Launch files hold the best plan, or the fastest other one that leaves as much memory free."""

from __future__ import annotations

from pathlib import Path

import pytest

import sartor
from sartor.api.plans import launch
from sartor.step.footprint import usable_bytes


def test_the_plan_written_in_place_of_one_the_trainer_cannot_run_leaves_as_much_memory_free() -> None:
    answer = sartor.plan(
        "llama-3.1-8b", "dgx-h100", num_devices=8, global_batch_size=64, seq_len=8192, framework="deepspeed"
    )
    made = launch(answer, "deepspeed")
    written = made.priced
    assert answer.best is not None
    assert written.plan != answer.best.plan  # which recomputes some layers
    assert "cannot run the best plan" in made.notes[0]
    assert written.step_s >= answer.best.step_s
    assert float(written.footprint.device_bytes) <= 0.95 * usable_bytes(answer.cluster)


@pytest.mark.parametrize(("model", "tp", "num_devices", "rows"), [("gpt2-xl", 5, 40, 50560), ("gpt2", 3, 24, 50304)])
def test_an_odd_degree_has_one_vocabulary_in_estimate_plan_lint_and_the_launch_written(
    model: str, tp: int, num_devices: int, rows: int, tmp_path: Path
) -> None:
    """Megatron pads 50,257 tokens to a multiple of 128 x tp: 640 of five ranks, and 384 of three."""
    run = {"num_devices": num_devices, "global_batch_size": 8 * num_devices, "tp": tp, "framework": "megatron"}
    best = sartor.plan(model, "dgx-h100", **run)
    (tmp_path / "launch.sh").write_text(launch(best, "megatron").files[0].text)
    back = sartor.lint_launch(tmp_path / "launch.sh", "dgx-h100", num_devices=num_devices, search=False)
    estimated, linted = (answer(model, cluster="dgx-h100", **run) for answer in (sartor.estimate, sartor.lint))
    assert int(back.job.shape.vocab_size) == rows
    for base in (estimated, linted.base):
        assert [int(op.n) * tp for op in base.graph.operators if op.name == "logits"][:1] == [rows]
        assert (float(base.time_s), base.peak_bytes) == (back.priced.step_s, back.priced.peak_bytes)
    assert best.best is not None
    assert (best.best.step_s, best.best.peak_bytes) == (back.priced.step_s, back.priced.peak_bytes)
