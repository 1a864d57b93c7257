"""Logs of every trainer: steps, rates, memory and facts, with the unit that each trainer prints."""

from __future__ import annotations

import gzip
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from sartor import api
from sartor.answers.diagnosis import LogDiagnosis, LogFacts, pauses_text
from sartor.errors import InputError
from sartor.traces.logs.read import FORMATS, _parse_log, read_log
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
    assert run.measured.drift == pytest.approx(-0.2)


def test_the_step_of_a_run_with_stalls_is_the_mean() -> None:
    (run,) = _parse_log(dump() + megatron((9.0, *[2.0, 2.0, 2.0, 4.0] * 6)), "log")
    assert (run.measured.step_s, run.measured.is_mean) == (2.5, True)
    assert run.measured.tokens_per_s == pytest.approx(64 * 4096 / 2.5)
    assert run.measured.stall_s == pytest.approx(0.5)
    assert pauses_text(run.measured) == "6 of 2 s, every 4 steps"
    (once,) = _parse_log(megatron((9.0, *[2.0] * 9, 30.0, *[2.0] * 9)), "log")
    assert (once.measured.step_s, once.measured.is_mean) == (2.0, False)
    assert pauses_text(once.measured) == "one of 28 s, after step 10"


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
    assert run.printed - run.iteration.size == len(TIMES)
    assert run.notes == ("6 of 10 steps had another batch and are left out: it ramps up to 128",)
    assert run.measured.step_s == pytest.approx(4.0)
    assert run.measured.allocated_bytes == 40000 * 2**20


def test_of_a_batch_that_goes_up_and_down_the_commonest_counts() -> None:
    last = megatron((4.0,), batch=32).replace("iteration        ", "iteration       1")
    (run,) = _parse_log(dump() + megatron() + last, "log")
    assert run.facts["global_batch_size"] == 64
    assert run.notes == (f"1 of {len(TIMES) + 1} steps had another batch and are left out: most have 64",)


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
    assert _parse_log(megatron(), "log")[0].no_number == ()
    assert len(_parse_log(megatron().replace("lm loss: 2.0E+00", "lm loss: NAN"), "log")[0].no_number) == len(TIMES)
    assert _parse_log(megatron().replace("loss: 2.0E+00", "loss: nan", 2), "log")[0].no_number == (1, 2)
    skipped = megatron().replace("nan iterations:   0", "nan iterations:   1")
    assert len(_parse_log(skipped, "log")[0].no_number) == len(TIMES)


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


@pytest.mark.slow
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
    shown = api.diagnose_log(path, global_batch_size=32)
    assert isinstance(shown, LogFacts)
    assert [fact.field for fact in shown.missing] == ["model", "gpu", "num_devices", "seq_len"]
    assert str(shown.command).endswith(
        "--global-batch-size 32 --model llama-3-8b --gpu h100 --num-devices 8 --seq-len 4096"
    )
    stated = {"model": "llama-3-8b", "gpu": "h100", "num_devices": 8, "seq_len": 4096, "global_batch_size": 32}
    assert isinstance(api.diagnose_log(path, best_plan=False, **stated), LogDiagnosis)


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


def test_a_text_that_only_quotes_the_words_of_a_step_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    for form in FORMATS:
        path.write_text(f"It prints {' and '.join(form.marks)}.\n\ntokens per step, loss: a step of 8 x 4,096 tokens\n")
        with pytest.raises(InputError, match=r"no step time in them|holds no line of a training step"):
            read_log(path)


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB. GPU 3 has a total capacity of 79.11 GiB "
OOM += "of which 5.02 GiB is free. {} GiB is allocated by PyTorch, and {} GiB is reserved by PyTorch but unallocated."
ENDS = {
    "Traceback (most recent call last):\n"
    + OOM.format(70.1, 2.91): "out of memory after step 6 (asked 7.83 GiB, 5.02 of "
    "79.11 GiB free). To do: PYTORCH_CUDA_ALLOC_CONF=expandable_segments",
    OOM.format(73.5, 0.2): "after step 6 (asked 7.83 GiB, 5.02 of 79.11 GiB free). To do: a smaller microbatch",
    "[rank3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5)": "in a timeout of NCCL",
    "Traceback (most recent call last):\n  File x\n0: ValueError: bad batch": "with an error: ValueError: bad batch",
    "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2025 DUE TO TIME LIMIT ***": "from outside after step 6",
    "[launch.py] exits with return code = 1": "with exit code 1",
    "[after training is done]": "",
}


@pytest.mark.parametrize("end", ENDS)
def test_what_ended_a_run_is_said(end: str) -> None:
    (run,) = _parse_log(megatron() + end + "\n", "log")
    assert ENDS[end] in " ".join(run.measured.events)
    assert bool(run.measured.events) == bool(ENDS[end])


def test_a_run_that_gets_slower_has_no_pauses_but_those_beyond_its_own_pace() -> None:
    times = [1.0, *np.linspace(1.3, 1.65, 50)]
    (run,) = _parse_log(torchtitan(tuple(times)), "log")
    assert run.measured.drift > 0.1
    assert run.measured.pauses == ()
    times[30] *= 1.5
    (run,) = _parse_log(torchtitan(tuple(times)), "log")
    assert [pause.seconds for pause in run.measured.pauses] == pytest.approx([times[30] / 3 * 10], rel=0.05)


def test_a_loss_before_its_bar_is_that_of_the_step_and_nan_counts() -> None:
    rows = (f"{{'loss': {'nan' if n > 5 else 1.5}, 'epoch': 0.1}}\n{BAR.format(n, '3.1s/it')}\n" for n in range(1, 9))
    (run,) = _parse_log("[2025] [INFO] [axolotl.train.train:120] Starting trainer\n" + "".join(rows), "log")
    assert (run.title, run.measured.no_number) == ("axolotl (Hugging Face Trainer)", (6, 7, 8))


def test_a_run_after_a_timeout_says_what_it_computes_again_from_its_checkpoint() -> None:
    line = " [2025-03-01 {}] iteration {}/ 100 | elapsed time per iteration (ms): {} | lm loss: 2.0 |\n"
    first = "".join(line.format(f"10:{n:02d}:00", 10 * n, 6000) for n in range(1, 11))
    again = "".join(line.format(f"11:{n:02d}:00", 10 * n, 7200) for n in range(6, 15))
    between = "Watchdog caught collective operation timeout\n- arguments -\n"
    between += "successfully loaded checkpoint from /c [ t 0, p 0 ] at iteration 50\n"
    timeout, resumed = _parse_log(first + between + again, "log")[1].measured.events
    assert timeout == "The run before stopped after step 100 in a timeout of NCCL."
    assert "after step 50 one that got to 100: 50 steps are computed twice, and 55 min pass" in resumed
    assert "its step is 20.0% slower (7.2 s, 6 s before)" in resumed


@pytest.mark.parametrize(("key", "unit_s"), [("train/step_time", 1.0), ("perf/iter_time_ms", 1e-3)])
def test_the_table_of_a_panel_is_read_run_by_run(key: str, unit_s: float) -> None:
    columns = [f"{run} - {key}{end}" for run in ("a - b", "c") for end in ("", "__MIN", "__MAX")]
    table = [(n, *[2 / unit_s] * 3, *[3 / unit_s] * 3) for n in range(1, 9)]
    rows = "".join(",".join(f'"{value}"' for value in row) + "\n" for row in table)
    runs = _parse_log(",".join(f'"{name}"' for name in ("Step", *columns)) + "\n" + rows, "log")
    assert [run.measured.step_s for run in runs] == pytest.approx([2.0, 3.0])


def test_a_submission_s_blocks_of_training_tell_its_step() -> None:
    line = (
        ':::MLLOG {{"time_ms": {}, "event_type": "X", "key": "{}", "value": {}, "metadata": {{"samples_count": {}}}}}'
    )
    rows = [line.format(0, "global_batch_size", 8, 0)]
    for n in range(6):
        begun = 1_718_000_000_000 + 180_000 * n
        rows += [
            line.format(begun, "block_start", '""', 0),
            line.format(begun + 160_000, "block_stop", '""', 384 * (n + 1)),
        ]
    (run,) = _parse_log("\n".join(rows), "log")
    assert run.iteration.tolist() == [48, 96, 144, 192, 240, 288]
    assert run.measured.step_s == pytest.approx(160 / 48)


@pytest.mark.parametrize(("rate", "seconds"), [("2.00it/s", 0.5), ("3.50s/it", 3.5)])
def test_lightning_s_bar_is_one_run_through_its_epochs(rate: str, seconds: float) -> None:
    bar = "\r{}  1%|█  | {}/10 [00:01<00:10,  {}, v_num=0, train_loss_step=2.310]"
    text = "".join(bar.format(f"Epoch {epoch}:", n, rate) for epoch in (0, 1) for n in range(1, 11))
    (run,) = _parse_log(text + bar.format("Validation DataLoader 0:", 3, "9.00it/s"), "log")
    assert run.iteration.tolist() == list(range(1, 21))
    assert (run.title, run.measured.step_s) == ("Lightning", pytest.approx(seconds))


def test_trl_s_end_has_its_losses_and_tokens_and_is_a_mean_of_the_whole_run() -> None:
    rows = "".join(f"{{'loss': {2 - n / 10}, 'num_tokens': {16384.0 * 10 * n}}}\n" for n in range(1, 11))
    (run,) = _parse_log(rows + "{'train_runtime': 612.4, 'train_steps_per_second': 0.163, 'train_loss': 1.1}", "log")
    measured = run.measured
    assert measured.is_whole
    assert measured.losses == (1.9, 1.0)
    assert measured.tokens_per_s == pytest.approx(1638400 / 612.4, rel=0.01)


def test_a_rate_that_a_log_does_not_print_is_not_its_own() -> None:
    measured = _parse_log(LOGS["nanogpt"], "log")[0].measured
    assert np.isnan(measured.flops_per_s)
    assert measured.printed_mfu > 0


def test_a_run_that_ends_before_its_first_step_says_why() -> None:
    with pytest.raises(InputError, match="The run ran out of memory before its first step"):
        _parse_log("loading\n" + OOM.format(73.5, 0.2), "log")


# Forms of trainers that have no row, of a step of 2 s and 8,192 tokens that ends with a peak of 30 GB.
WORDS = {
    "bare": "step {n:4d}/99 | loss 3.1 (+1.2z)| lr 3e-04 | 2000.00 ms | -100.0% bf16 MFU | 4096 tok/s",
    "comma": "2023-04-05 | INFO | epoch 001: {n}00 / 9 loss=9.2, wps=4096.0, ups=0.50, wpb=8192, num_updates={n}",
    "colon": "loss: 9.1, global_step: {n}, interval_runtime: 20.0, interval_steps_per_second: 0.5000",
    "dash": "step:{n} - actor/pg_loss:0.1 - timing_s/step:2.000 - perf/mfu/actor:0.310",
    "below": "[step={n}/99]\n    train/loss=2.5\n    throughput/batches_per_sec=0.5\n    device/batches_per_sec=0.1",
    "elapsed": "{{'loss': 0.4, 'train_speed(iter/s)': 0.1, 'global_step/max_steps': '{n}/99', 'elapsed_time': '{t}s'}}",
    "first": "{n}0 | loss 5.7 | lr 4.9e-05 | 2000.00ms | mfu 0.21%",
    "units": "Progress on:train {n}.00kit/10.0kit rate:2.0s/it remaining:3:32 elapsed:04:24 postfix:loss=5.1",
    "capital": "02:40 OK Step {n} | Time: 2.00s | Loss: 12.2 | Throughput: 4096 tokens/s | Peak Mem.: 5.2/23 GiB",
    "clock": "17:45:{t:02d} [INFO] [Rank 0] step: {n}, loss: 10.8, tokens_per_second: 4096.00, mfu: 44.02",
    "both": "2026-08-10 15:55:{t:02d} | root | step {n} | loss 0.69 | mem 24.90 GiB | tps 8192.0(4096.0/gpu)",
    "sec": "INFO:tensorflow:global step {n}: loss = 79.3501 (2.000 sec/step)",
    "mega": "Tokens per iteration: 8,192\n  4%|4 | 4/9 [00:04<01:12, 9.9it/s][INFO] - step={n} loss=3.6 mtps=0.004096",
    "olmo": "[2024-04-17 09:42:{t:02d}] INFO [olmo.train:816, rank=0] [step={n}/99]\n    train/CrossEntropyLoss=11.2",
    "quoted": '{{"epoch": {n}, "loss": "3.097", "wps": 4096, "ups": "0.5", "wpb": 8192, "num_updates": {n}}}',
    "of all": "| epoch 010  {n}00 / 9000 loss=1.2 (1.5), wps=4096, wpb=8192, bsz=32, lr=0.001, clip=100%, gnorm=2.1",
    "wrapped": "iteration  {n}/ 50 |\nelapsed time per iteration (ms): 2000.0 | lm loss: 4.4\nStep Time : 9.1s",
    "rate below": "INFO:tensorflow:loss = 0.37, step = {n}0 (20.00 sec)\nINFO:tensorflow:global_step/sec: 0.5",
    "no number": "loss = 0.37\nglobal_step/sec: 0.5",
    "brackets": "[16:37:{t:02d}] step 0{n} [training 8/60s]  | loss: 7.250 | tok/sec: 4,096",
    "device": "| Training Device=xla:0/3 Epoch=1 Step={n} Loss=0.01 Rate=1760.91 GlobalRate=257.10 Time=07:29:{t:02d}",
    "episode": "Epoch : 1/50  episode : {n}/40   Loss : 1.34  Accuracy : 0.48 step_time: 2.0",
    "stamps": "2024-07-10 14:26:{t:02d} INFO -- tflops=188.0,step={n},loss=5.4,tgs (tokens/gpu/second)=4096.0,fwd=1.7",
}


@pytest.mark.parametrize("form", WORDS)
def test_a_trainer_without_a_form_is_read_by_its_words_and_which_is_said(form: str) -> None:
    text = "Loading shards: 100%|####| 4/4 [00:05<00:00,  1.30s/it]\n"
    text += "".join(f"{WORDS[form].format(n=n, t=2 * n)}\n" for n in range(1, 12))
    (run,) = _parse_log(text, "log")
    assert run.measured.step_s == pytest.approx(2)
    assert run.title == "unknown trainer"
    assert " from " in run.notes[-1]
    assert run.measured.no_number == ()
    assert not run.measured.printed_mfu > 0.5


# Trainers whose steps last 2 s; c counts batches of 64.
FORMS = {
    "open_clip": "Train Epoch: 0 [ {c}/9 (6%)] Loss: 0.9 (0.9) Data (t): 0.158 Batch (t): 2.000, 36.0876/s LR: 0.1",
    "ESPnet": "INFO: 1epoch:train:1-{n}batch: iter_time=0.001, forward_time=0.5, loss=1.3, train_time=2.000",
    "icefall": "2023-05-01 13:03:{t:02d},309 Epoch 1, batch {n}, loss[loss=2.4, over 4.0 frames], tot_loss[loss=2.6]",
    "verl (reinforcement learning)": "(pid=7) step:{n} - actor/lr:0.1 - timing_s/gen:1.5 - timing_s/step:2.0\n"
    "Training Progress:   2%|#  | {n}/99 [01:41:02<62:31:21, 4.33s/it]",
    "DeepSpeed": "[2022-03-11 02:06:{t:02d},985] 0/{n}, SamplesPerSec=83.4, MemAllocated=0.2GB, MaxMemAllocated=9GB",
    "Lightning": "Epoch 0:  97% {n}/99 [13:00<00:24,  0.50it/s, loss=0.158, v_num=0]",
    "torchtune": "INFO:torchtune.utils:Learning\n[t|0]:1|{n}|Loss: 2.79:   1%|#  | {n}/101 [00:20<34:51, 2.00s/it]",
}


@pytest.mark.parametrize("title", FORMS)
def test_a_trainer_is_known_by_its_lines_and_counts_steps_whatever_it_counts(title: str) -> None:
    (run,) = _parse_log("".join(f"{FORMS[title].format(n=n, t=2 * n, c=64 * n)}\n" for n in range(1, 12)), "log")
    assert (run.title, run.measured.step_s) == (title, pytest.approx(2))
    assert run.iteration.tolist() == list(range(1, 12))
    assert ("rollouts" in "".join(run.notes)) == ("reinforcement" in title)


def test_a_bar_may_swap_its_unit_and_a_callback_s_tokens_and_memory_are_of_its_step() -> None:
    seen = "{{'loss': 7.1, 'num_input_tokens_seen': {}, "
    seen += "'total_peak_memory_allocated_MB': 2048.0, 'step_tokens_per_second': 9.5}}\n"
    bars = [f"  1%|# | {n}/99 [00:20<34:51, {'1.25it/s' if n % 2 else '1.25s/it'}]\n" for n in range(9)]
    (alone,) = _parse_log("".join(seen.format(4096 * n) for n in range(1, 9)), "log")
    (beside,) = _parse_log("".join(bar + seen.format(4096 * n) for n, bar in enumerate(bars)), "log")
    assert alone.iteration.tolist() == beside.iteration.tolist() == list(range(1, 9))  # nothing is done at 0 of 99
    assert beside.step_s.tolist() == pytest.approx([0.8, 1.25] * 4)
    for run in (alone, beside):
        assert (run.measured.tokens_per_s, run.measured.allocated_bytes) == pytest.approx((9.5, 2**31))


def _words_of(line: str) -> str:
    return " ".join(_parse_log("".join(f"{line.format(n=n)}\n" for n in range(1, 9)), "log")[0].notes)


def test_tokens_of_which_a_log_does_not_say_whose_they_are_stay_open_until_its_batch_tells() -> None:
    line = "step {n:05d}/21400 (0.0%) | loss: 9.4 | dt: 2000.00ms | tok/sec: 4,096 | mfu: 47.47 | total time: 0.0m"
    assert "its 4,096 tokens/s may be of one GPU or of all: the log does not say; they make 8,192 tokens" in _words_of(
        line
    )
    (run,) = _parse_log("".join(f"{line.format(n=n)}\n" for n in range(1, 9)), "log")
    assert np.isnan(run.measured.tokens_per_s)
    of_all = run.knowing(seq_len=1024, global_batch_size=8, num_devices=4)
    of_one = run.knowing(seq_len=1024, global_batch_size=32, num_devices=4)
    assert [each.measured.tokens_per_s for each in (of_all, of_one)] == pytest.approx([4096, 4 * 4096])
    assert not any("may be of one GPU" in note for each in (of_all, of_one) for note in each.notes)


def test_samples_a_second_without_a_batch_are_said() -> None:
    bars = (
        "{{'train_step_runtime': 2.0, 'train_step_samples_per_second': 16.0}}\n 98%|# | {n}/99 [26:02<00:22,  1.9s/it]"
    )
    assert "it prints 16 samples/s: 32 samples a step" in _words_of(bars)


@pytest.mark.parametrize(
    "words", ["'completions/mean_length': 81.2", "losses/policy_loss: 0.59", "'rewards/chosen': 0.3"]
)
def test_a_step_that_holds_rollouts_is_said_whoever_trains(words: str) -> None:
    bars = f"{{{{'loss': 0.1, {words}}}}}\n 98%|# | {{n}}/99 [26:02<00:22,  1.9s/it]"
    assert ("mostly rollouts" in _words_of(bars)) == ("chosen" not in words)


def test_a_loss_that_is_nan_counts_without_a_colon() -> None:
    line = "step   {n}/74 | loss     nan (+nanz)| norm    nan (+nanz)| lr 3.00e-04 | 36.58 ms | 112241 tok/s\n"
    (run,) = _parse_log("".join(line.format(n=n) for n in range(1, 9)) + "val loss nan\n", "log")
    assert len(run.no_number) == 8


def test_a_loss_may_stand_before_its_word() -> None:
    text = "".join(
        f"    {n} 4.3{n} s run, 11.{n}750 loss, 0.000002 LR, 1454.57 GB used, 400 GFLOPS\n" for n in range(1, 9)
    )
    assert _parse_log(text, "log")[0].measured.losses == (11.175, 11.875)


def test_the_bar_of_an_evaluation_is_no_step() -> None:
    bars = "".join(f"{BAR.format(n, '2.52s/it')}\n" for n in range(1, 9))
    (run,) = _parse_log(f"{bars}evaluating Epoch: 100%|##| 25/25 [00:06<00:00,  3.69it/s]\n", "log")
    assert run.measured.step_s == pytest.approx(2.52)


def test_stamps_that_contradict_a_rate_are_said() -> None:
    line = "2020-07-17 06:58:{:02d} | epoch 001: loss=13.5, wps=9.6, ups={}, num_updates={}00\n"
    notes = {
        ups: _parse_log("".join(line.format(n, ups, n) for n in range(1, 9)), "log")[0].notes for ups in (0.02, 90)
    }
    assert "do not trust it" in notes[0.02][-1]
    assert "do not trust it" not in notes[90][-1]


@pytest.mark.parametrize(
    "line",
    ["Step {n}/9 : RUN make, 2.0 s", "loss {n} of 2.0 s", "2024-07-10 14:26:{n:02d} step {n} of the installation"],
)
def test_numbered_lines_without_a_loss_and_losses_without_a_number_are_no_log(line: str) -> None:
    with pytest.raises(InputError, match="no line of a training step"):
        _parse_log("".join(f"{line.format(n=n)}\n" for n in range(1, 30)), "log")


def test_a_clock_of_whole_seconds_tells_a_step_of_a_fraction() -> None:
    text = "".join(f"17:{n * 3.4 // 60:02.0f}:{int(n * 3.4) % 60:02d} step: {n}, loss: 2\n" for n in range(1, 60))
    (run,) = _parse_log(text, "log")
    assert run.measured.usual_step_s == pytest.approx(3.4, rel=0.01)


def test_steps_that_are_not_printed_count_as_usual_ones() -> None:
    """Every tenth step is printed, each tenth of these with an evaluation: one of 100 steps takes 50 s more."""
    text = "tokens per iteration will be: 8,192\n"
    text += "".join(f"{n} | loss 5.7 | {2000 + 50_000 * (n % 100 == 0)}.00ms\n" for n in range(10, 510, 10))
    (run,) = _parse_log(text, "log")
    assert run.measured.tokens_per_s == pytest.approx(8192 / 2.5, rel=0.03)
    assert run.measured.paused_s / run.measured.wall_s == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("last", [1, 4])
def test_gradients_that_are_nan_to_the_end_are_said_and_one_that_fp16_skips_is_not(last: int) -> None:
    lines = megatron().splitlines()
    lines = [
        line.replace("grad norm: ", "grad norm: nan x") if n >= len(lines) - last else line
        for n, line in enumerate(lines)
    ]
    (run,) = _parse_log("\n".join(lines), "log")
    assert bool(run.events) == (last > 1)


def test_a_run_that_overflows_until_its_trainer_gives_up_says_both() -> None:
    rows = "".join(
        f"{BAR.format(n, '3.1s/it')}[INFO] OVERFLOW! Rank 0 Skipping step. Reducing to 1\n" for n in range(1, 9)
    )
    (run,) = _parse_log(f"{rows}Traceback (most recent call last):\nException: loss scale at its least\n", "log")
    assert run.measured.skipped == 8
    assert "stopped after step 8 with an error: Exception: loss scale" in run.events[0]
