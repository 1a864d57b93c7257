"""Launch files hold the best plan, or the fastest other one that leaves as much memory free."""

from __future__ import annotations

import sartor
from sartor.api.plans import launch
from sartor.step.footprint import usable_bytes


def test_the_plan_written_in_place_of_one_the_trainer_cannot_run_leaves_as_much_memory_free() -> None:
    answer = sartor.plan(
        "llama-3.1-8b", "dgx-h100", num_devices=8, global_batch_size=64, seq_len=4096, framework="deepspeed"
    )
    made = launch(answer, "deepspeed")
    written = made.priced
    assert answer.best is not None
    assert written.plan != answer.best.plan  # which recomputes some layers
    assert "cannot run the best plan" in made.notes[0]
    assert written.step_s >= answer.best.step_s
    assert float(written.footprint.device_bytes) <= 0.95 * usable_bytes(answer.cluster)
