"""Logs of every trainer: steps, rates, memory and facts, with the unit that each trainer prints."""

from __future__ import annotations

import gzip
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from sartor import api
from sartor.errors import InputError
from sartor.traces.logs.read import _parse_log, read_log
from sartor.traces.read import is_trace
from traces.logs_made import LOGS, TIMES, dump, megatron, torchtitan

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "training_logs"


@pytest.mark.parametrize("trainer", LOGS)
def test_every_trainer_tells_the_same_steady_step(trainer: str) -> None:
    (run,) = _parse_log(LOGS[trainer], trainer)
    assert run.measured.step_s == pytest.approx(2.0, rel=0.01)
    by_clock = trainer in ("torchtitan", "llama-factory")  # which starts with the first line
    assert run.measured.warm_up == (2 if by_clock else 1)
    assert run.measured.num_steps == len(TIMES) - run.measured.warm_up
    assert run.measured.spread < 0.02


def test_memory_is_in_bytes_whatever_the_unit_that_is_printed() -> None:
    seen = {name: _parse_log(text, name)[0].measured for name, text in LOGS.items()}
    assert seen["megatron"].allocated_bytes == 40000 * 2**20
    assert seen["megatron"].reserved_bytes == 45000 * 2**20
    assert seen["torchtitan"].reserved_bytes == pytest.approx(30.89 * 2**30)
    assert seen["deepspeed"].allocated_bytes == pytest.approx(22.6 * 2**30)
    assert seen["nanotron"].reserved_bytes == 30e9
    assert seen["nemo"].reserved_bytes == 57466159104
    newer = LOGS["nemo"].replace("max_memory_reserved", "peak_memory_usage")
    assert _parse_log(newer, "log")[0].measured.reserved_bytes == 57466159104


def test_tokens_of_a_step_follow_from_rate_and_time() -> None:
    (run,) = _parse_log(torchtitan(), "log")
    assert run.facts["num_devices"] == 8
    assert run.device_tokens_per_step == pytest.approx(8192, rel=0.01)
    assert run.tokens_per_step == pytest.approx(8 * 8192, rel=0.01)


def test_lines_of_other_ranks_and_colours_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(torchtitan(coloured=True))
    (plain,), (coloured,) = _parse_log(torchtitan(), "log"), read_log(path)
    assert np.array_equal(plain.iteration, coloured.iteration)
    assert plain.iteration.size == len(TIMES)


def test_a_run_that_starts_again_is_another_run() -> None:
    runs = _parse_log(megatron() + megatron((9.0, 3.0, 3.0, 3.0)), "log")
    assert [run.measured.step_s for run in runs] == pytest.approx([2.0, 3.0])
    assert [(run.index, run.num_runs) for run in runs] == [(0, 2), (1, 2)]


def test_the_dump_of_arguments_says_the_plan() -> None:
    (run,) = _parse_log(dump() + megatron(), "log")
    assert {name: run.facts[name] for name in ("tp", "pp", "num_devices", "microbatch_size", "seq_len")} == {
        "tp": 2,
        "pp": 2,
        "num_devices": 16,
        "microbatch_size": 1,
        "seq_len": 4096,
    }
    assert (
        _parse_log(dump(deepspeed=True, DDP_impl="local") + megatron(), "log")[0].trainer == "megatron-deepspeed@2025"
    )


def test_warm_up_ends_with_the_first_step_as_fast_as_the_later_half() -> None:
    (run,) = _parse_log(megatron((30.0, 4.0, 2.5, 2.0, 2.0, 2.0, 2.0, 2.0)), "log")
    assert run.warm_up == 3
    (short,) = _parse_log(megatron((3.0, 2.0)), "log")
    assert short.warm_up == 0  # two steps are too few to leave one out


def test_a_run_that_becomes_faster_has_no_long_warm_up() -> None:
    (run,) = _parse_log(megatron((*[5.0] * 70, *[4.0] * 80)), "log")
    assert run.warm_up == 1
    assert run.measured.step_s == pytest.approx((69 * 5 + 80 * 4) / 149)
    assert run.notes == ("the run changes its speed: the first half of its steps takes 5 s, the second 4 s (medians)",)


def test_the_step_of_a_run_with_stalls_is_the_mean() -> None:
    (run,) = _parse_log(dump() + megatron((9.0, *[2.0, 2.0, 2.0, 4.0] * 6)), "log")
    assert (run.measured.step_s, run.measured.is_mean) == (2.5, True)
    assert run.measured.tokens_per_s == pytest.approx(64 * 4096 / 2.5)
    assert run.measured.stall_s == pytest.approx(0.5)
    assert run.stalls == "1 step in 4 takes 4 s, the others 2 s"
    (once,) = _parse_log(megatron((9.0, *[2.0] * 9, 30.0, *[2.0] * 9)), "log")
    assert (once.measured.step_s, once.measured.is_mean) == (2.0, False)
    assert "one step of 30 s" in once.notes[0]


def test_memory_is_that_of_the_highest_rank_in_whatever_order_they_print() -> None:
    first, report, *rest = megatron().splitlines()
    other = report.replace("Rank 0", "Rank 32").replace("40000.0", "60000.0").replace("45000.0", "65000.0")
    for lines in ([first, report, other, *rest], [first, other, report, *rest]):
        (run,) = _parse_log("\n".join(lines), "log")
        assert run.measured.allocated_bytes == 60000 * 2**20
    text = torchtitan()
    higher = text.replace("[rank1]:", "[rank3]:").replace("memory: 30.89GiB", "memory: 35.00GiB", 2)
    runs = [_parse_log("\n".join(lines), "log")[0] for lines in (higher.splitlines(), _last_first(higher))]
    assert [run.measured.reserved_bytes for run in runs] == [35 * 2**30] * 2
    assert np.array_equal(runs[0].device_tokens_per_s, runs[1].device_tokens_per_s)


def _last_first(text: str) -> list[str]:
    """The lines of the two ranks in the other order."""
    head, *steps = text.splitlines()
    return [head, *(line for one, other in zip(steps[::2], steps[1::2], strict=True) for line in (other, one))]


def test_a_launch_that_resumes_is_another_run_though_its_iterations_go_on() -> None:
    later = megatron((9.0, 3.0, 3.0, 3.0)).replace("iteration        ", "iteration       1")
    runs = _parse_log(dump() + megatron() + dump(world_size=32) + later, "log")
    assert [run.facts["num_devices"] for run in runs] == [16, 32]
    assert [run.measured.step_s for run in runs] == pytest.approx([2.0, 3.0])


def test_epochs_are_one_run_where_the_global_step_goes_on() -> None:
    lines = LOGS["nemo"].splitlines()
    again = [line.replace(f"global_step: {i}", f"global_step: {i + 6}") for i, line in enumerate(lines, start=1)]
    (run,) = _parse_log("\n".join([*lines, *again]), "log")
    assert run.iteration.tolist() == list(range(1, 13))


def test_of_a_batch_that_ramps_up_only_the_last_size_counts() -> None:
    later = megatron((4.0, 4.02, 3.98, 4.0), batch=128).replace("iteration        ", "iteration       1")
    (run,) = _parse_log(dump() + megatron() + later, "log")
    assert run.facts["global_batch_size"] == 128
    assert run.others == len(TIMES)
    assert run.notes == ("6 of 10 steps had another batch and are left out: it ramps up to 128",)
    assert run.measured.step_s == pytest.approx(4.0)
    assert run.measured.allocated_bytes == 40000 * 2**20


@pytest.mark.parametrize(
    "prefix", ["2026-11-01T12:00:00.123456789Z stdout F ", "[2026-11-01 12:00:00,123] [gpu-node-0123.cluster.local] "]
)
def test_a_prefix_of_any_length_hides_no_argument(prefix: str) -> None:
    text = "\n".join(prefix + line for line in (dump() + megatron()).splitlines())
    assert _parse_log(text, "log")[0].arguments == _parse_log(dump() + megatron(), "log")[0].arguments


def test_torchtitan_s_newer_words_are_read() -> None:
    head = (
        "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=4, ep=1\n"
        "Applied {} activation checkpointing to the model\n"
    )
    (run,) = _parse_log(head.format("FullAC") + torchtitan().split("\n", 1)[1], "log")
    assert {name: run.facts[name] for name in ("num_devices", "tp", "pp", "recompute")} == {
        "num_devices": 32,
        "tp": 4,
        "pp": 1,
        "recompute": "full",
    }
    (other,) = _parse_log(head.format("SelectiveAC") + torchtitan(), "log")
    assert other.facts["recompute"] == "selective"


def test_losses_that_are_no_number_are_counted() -> None:
    assert _parse_log(megatron(), "log")[0].no_number == 0
    assert _parse_log(megatron().replace("lm loss: 2.0E+00", "lm loss: NAN"), "log")[0].no_number == len(TIMES)
    assert _parse_log(megatron().replace("loss: 2.0E+00", "loss: nan", 2), "log")[0].notes == (
        "2 of 6 steps have a loss that is not a number: what they compute may take another time",
    )
    skipped = megatron().replace("nan iterations:   0", "nan iterations:   1")
    assert _parse_log(skipped, "log")[0].no_number == len(TIMES)


def test_transformers_tells_its_mean_at_the_end() -> None:
    text = "{'loss': 2.1, 'grad_norm': 1.2, 'epoch': 0.1}\n" * 9 + (
        "{'train_runtime': 1000.0, 'train_samples_per_second': 51.2, 'train_steps_per_second': 0.4, 'train_loss': 2.0}"
    )
    (run,) = _parse_log(text, "log")
    assert run.measured.step_s == pytest.approx(2.5)


def test_megatron_s_seconds_per_iteration_are_seconds() -> None:
    line = "[default7]: iteration {}/ 100 | elapsed time per iteration (s): {} | global batch size:  2048 |"
    (run,) = _parse_log("\n".join(line.format(*pair) for pair in ((1, 104.2), (2, 104.35), (3, 104.11))), "log")
    assert run.measured.step_s == pytest.approx(104.2, rel=2e-3)
    assert run.facts["global_batch_size"] == 2048


def test_a_submission_that_counts_samples_as_steps_has_its_rate() -> None:
    line = ':::MLLOG {{"time_ms": {}, "key": "{}", "value": {}, "metadata": {{"step": {}}}}}'
    rate = '{"throughput": 30.0}'
    rows = (
        (0, "global_batch_size", 32, 0),
        (100, "tracked_stats", rate, 12288),
        (509700, "tracked_stats", rate, 24576),
    )
    (run,) = _parse_log("\n".join(line.format(1759000000000 + ms, *rest) for ms, *rest in rows), "log")
    assert run.iteration.tolist() == [384, 768]
    assert run.measured.step_s == pytest.approx(32 / 30)


def test_a_log_in_gzip_and_one_of_json_lines_are_logs(tmp_path: Path) -> None:
    packed, lines = tmp_path / "train.log.gz", tmp_path / "trainer_log.jsonl"
    packed.write_bytes(gzip.compress(megatron().encode()))
    lines.write_text(LOGS["llama-factory"])
    assert not is_trace(packed)
    assert not is_trace(lines)
    assert read_log(packed)[0].measured.step_s == pytest.approx(2.0)
    packed.write_bytes(gzip.compress(megatron().encode())[:-20])
    with pytest.raises(InputError, match="must be readable"):
        read_log(packed)


def test_a_long_log_takes_time_in_proportion() -> None:
    """Seconds per line of 40,000 lines, at most three times those of 4,000: every line once made all columns anew."""
    line = megatron().splitlines()[0]
    seconds = []
    for count in (4_000, 40_000):
        text = "\n".join(line.replace("       1/", f"{i:8d}/") for i in range(1, count + 1))
        start = time.process_time()
        _parse_log(text, "log")
        seconds.append((time.process_time() - start) / count)
    assert seconds[1] < 3 * seconds[0]


@pytest.mark.parametrize("text", ["", "hello\nworld\n", "loss: 3.1\nloss: 3.0\n", "\x00\x01\x02"])
def test_a_text_that_is_no_log_is_one_sentence(text: str) -> None:
    with pytest.raises(InputError, match="no line of a training step that is known") as caught:
        _parse_log(text, "train.log")
    assert "\n" not in str(caught.value)


def test_lines_without_a_step_time_are_one_sentence() -> None:
    text = megatron().replace("ms): ", "ms): x")
    with pytest.raises(InputError, match="no step time in them"):
        _parse_log(text, "train.log")


@pytest.mark.parametrize("cut", range(0, 3000, 97))
def test_a_log_cut_off_after_its_first_step_is_read(cut: int) -> None:
    head = dump() + megatron().split("\n")[0]
    text = (dump() + megatron())[: len(head) + cut]
    assert _parse_log(text, "log")[0].measured.step_s > 0


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published logs of ../shared are not here")
def test_the_published_logs_are_read() -> None:
    steps = {path.name.split("_")[0] + path.name.split("_")[1]: read_log(path) for path in sorted(SHARED.glob("*.log"))}
    assert len(steps) == 6
    assert [len(runs) for runs in steps.values()] == [1, 1, 1, 1, 1, 3]
    medians = [runs[0].measured.step_s for runs in steps.values()]
    assert medians == pytest.approx([26.2, 137.8, 1.381, 5.47, 14.4, 1.167], rel=0.01)


BAR = "\r {0}%|###   | {0}/100 [00:{0:02d}<08:10,  {1}]"


@pytest.mark.parametrize(("rate", "seconds"), [("5.20s/it", 5.2), ("2.50it/s", 0.4)])
def test_the_progress_bar_of_a_trainer_has_a_unit_of_its_own(rate: str, seconds: float) -> None:
    head = "  Instantaneous batch size per device = 2\n"
    head += "  Total train batch size (w. parallel, distributed & accumulation) = 64\n"
    memory = "\n{'loss': 1.0, 'memory/device_reserved (GiB)': 71.3, 'epoch': 0.1}\n"
    (run,) = _parse_log(head + "".join(BAR.format(k, rate) for k in range(1, 9)) + memory, "log")
    assert run.measured.step_s == pytest.approx(seconds)
    assert (run.facts["global_batch_size"], run.facts["microbatch_size"]) == (64, 2)
    assert run.measured.reserved_bytes == pytest.approx(71.3 * 2**30)


def test_an_export_of_a_runs_history_has_the_times_between_its_rows() -> None:
    rows = [(k, 100 + 3.1 * k, 10 * k) for k in range(1, 9)]
    table = "_step,_runtime,train/global_step\n" + "".join(f"{a},{b:.2f},{c}\n" for a, b, c in rows)
    lines = "".join(f'{{"_step": {a}, "_runtime": {b:.2f}, "train/global_step": {c}}}\n' for a, b, c in rows)
    for text in (table, lines):
        (run,) = _parse_log(text, "log")
        assert run.measured.step_s == pytest.approx(0.31, rel=1e-3)


@pytest.mark.parametrize(
    ("key", "value", "count", "seconds"),
    [
        ("tracked_stats", '{"throughput": 30.0}', "samples_count", 32 / 30),
        ("tracked_stats", '{"train_step_time": 1.5}', "step_num", 1.5),
        ("throughput", "30.0", "samples_count", 32 / 30),
        ("train_step_time", "1.5", "step", 1.5),
    ],
)
def test_a_submission_says_its_steps_by_any_of_its_keys(key: str, value: str, count: str, seconds: float) -> None:
    line = ':::MLLOG {{"time_ms": {}, "key": "{}", "value": {}, "metadata": {{"{}": {}}}}}'
    rows = [(0, "global_batch_size", 32, count, 0)]
    rows += [(1000 + 10666 * k, key, value, count, 320 * k) for k in range(1, 9)]
    (run,) = _parse_log("\n".join("0: " + line.format(1759000000000 + ms, *rest) for ms, *rest in rows), "log")
    assert run.measured.step_s == pytest.approx(seconds)


def test_everything_that_a_log_does_not_say_is_asked_for_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("".join(BAR.format(k, "5.20s/it") for k in range(1, 9)))
    asked = "does not say its model, its GPU, how many GPUs it had, its sequence length and its batch"
    with pytest.raises(InputError, match=asked) as caught:
        api.diagnose_log(path)
    assert caught.value.nearest.endswith(
        "--model llama-3-8b --gpu h100 --num-devices 8 --seq-len 4096 --global-batch-size 64"
    )


def test_a_tensorboard_file_is_read_by_its_scalars_or_its_clock_and_may_be_cut_off(tmp_path: Path) -> None:
    def number(value: int) -> bytes:
        return bytes([value & 127 | 128]) + number(value >> 7) if value > 127 else bytes([value])

    def part(field: int, content: bytes) -> bytes:
        return number(field << 3 | 2) + number(len(content)) + content

    def record(time_s: float, rest: bytes) -> bytes:
        event = b"\x09" + struct.pack("<d", time_s) + rest
        return struct.pack("<Q", len(event)) + bytes(4) + event + bytes(4)

    def step(index: int, scalars: dict[str, float]) -> bytes:
        values = (part(1, part(1, tag.encode()) + b"\x15" + struct.pack("<f", x)) for tag, x in scalars.items())
        return record(1.7e9 + 2.0 * index, b"\x10" + number(index) + part(5, b"".join(values)))

    head = record(1.7e9, part(3, b"brain.Event:2"))
    path = tmp_path / "events.out.tfevents.1"
    for scalars in ({"throughput(tps)": 4096.0, "memory/max_reserved(GiB)": 40.5}, {"train/loss": 2.5}):
        path.write_bytes(head + b"".join(step(index, scalars) for index in range(1, 200)))
        (run,) = read_log(path)
        assert run.iteration.size == 199
        measured = run.knowing(seq_len=8192, global_batch_size=8, num_devices=8).measured
        assert measured.step_s == pytest.approx(2.0, rel=1e-3)
    path.write_bytes((head + b"".join(step(index, {"train/loss": 2.5}) for index in range(1, 5)))[:-40])
    assert read_log(path)[0].iteration.size == 3
    path.write_bytes(head)
    with pytest.raises(InputError, match="holds no line of a training step"):
        read_log(path)
