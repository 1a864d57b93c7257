"""Logs of every trainer: steps, rates, memory and facts, with the unit that each trainer prints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sartor.errors import InputError
from sartor.traces.logs.read import parse_log, read_log
from traces.logs_made import LOGS, TIMES, dump, megatron, torchtitan

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "training_logs"


@pytest.mark.parametrize("trainer", LOGS)
def test_every_trainer_tells_the_same_steady_step(trainer: str) -> None:
    (run,) = parse_log(LOGS[trainer], trainer)
    assert run.measured.step_s == pytest.approx(2.0, rel=0.01)
    assert run.measured.warm_up == (2 if trainer == "torchtitan" else 1)  # whose clock starts with its first line
    assert run.measured.num_steps == len(TIMES) - run.measured.warm_up
    assert run.measured.spread < 0.02


def test_memory_is_in_bytes_whatever_the_unit_that_is_printed() -> None:
    seen = {name: parse_log(text, name)[0].measured for name, text in LOGS.items()}
    assert seen["megatron"].allocated_bytes == 40000 * 2**20
    assert seen["megatron"].reserved_bytes == 45000 * 2**20
    assert seen["torchtitan"].reserved_bytes == pytest.approx(30.89 * 2**30)
    assert seen["deepspeed"].allocated_bytes == pytest.approx(22.6 * 2**30)
    assert seen["nanotron"].reserved_bytes == 30e9
    assert seen["nemo"].reserved_bytes == 57466159104


def test_tokens_of_a_step_follow_from_rate_and_time() -> None:
    (run,) = parse_log(torchtitan(), "log")
    assert run.facts["num_devices"] == 8
    assert run.device_tokens_per_step == pytest.approx(8192, rel=0.01)
    assert run.tokens_per_step == pytest.approx(8 * 8192, rel=0.01)


def test_lines_of_other_ranks_and_colours_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(torchtitan(coloured=True))
    (plain,), (coloured,) = parse_log(torchtitan(), "log"), read_log(path)
    assert np.array_equal(plain.iteration, coloured.iteration)
    assert plain.iteration.size == len(TIMES)


def test_a_run_that_starts_again_is_another_run() -> None:
    runs = parse_log(megatron() + megatron((9.0, 3.0, 3.0, 3.0)), "log")
    assert [run.measured.step_s for run in runs] == pytest.approx([2.0, 3.0])
    assert [(run.index, run.num_runs) for run in runs] == [(0, 2), (1, 2)]


def test_the_dump_of_arguments_says_the_plan() -> None:
    (run,) = parse_log(dump() + megatron(), "log")
    assert {name: run.facts[name] for name in ("tp", "pp", "num_devices", "microbatch_size", "seq_len")} == {
        "tp": 2,
        "pp": 2,
        "num_devices": 16,
        "microbatch_size": 1,
        "seq_len": 4096,
    }
    assert parse_log(dump(deepspeed=True, DDP_impl="local") + megatron(), "log")[0].trainer == "megatron-deepspeed@2025"


def test_warm_up_ends_with_the_first_step_as_fast_as_the_later_half() -> None:
    (run,) = parse_log(megatron((30.0, 4.0, 2.5, 2.0, 2.0, 2.0, 2.0, 2.0)), "log")
    assert run.warm_up == 3
    (short,) = parse_log(megatron((3.0, 2.0)), "log")
    assert short.warm_up == 0  # two steps are too few to leave one out


@pytest.mark.parametrize("text", ["", "hello\nworld\n", "loss: 3.1\nloss: 3.0\n", "\x00\x01\x02"])
def test_a_text_that_is_no_log_is_one_sentence(text: str) -> None:
    with pytest.raises(InputError, match="no line of a training step that is known") as caught:
        parse_log(text, "train.log")
    assert "\n" not in str(caught.value)


def test_lines_without_a_step_time_are_one_sentence() -> None:
    text = megatron().replace("ms): ", "ms): x")
    with pytest.raises(InputError, match="no step time in them"):
        parse_log(text, "train.log")


@pytest.mark.parametrize("cut", range(0, 3000, 97))
def test_a_log_cut_off_after_its_first_step_is_read(cut: int) -> None:
    head = dump() + megatron().split("\n")[0]
    text = (dump() + megatron())[: len(head) + cut]
    assert parse_log(text, "log")[0].measured.step_s > 0


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published logs of ../shared are not here")
def test_the_published_logs_are_read() -> None:
    steps = {path.name.split("_")[0] + path.name.split("_")[1]: read_log(path) for path in sorted(SHARED.glob("*.log"))}
    assert len(steps) == 6
    assert [len(runs) for runs in steps.values()] == [1, 1, 1, 1, 1, 3]
    medians = [runs[0].measured.step_s for runs in steps.values()]
    assert medians == pytest.approx([26.2, 137.8, 1.381, 5.47, 14.4, 1.167], rel=0.01)
