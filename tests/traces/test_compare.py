"""``sartor compare``: a change beyond noise is found, noise is no change, and the exit code is a gate."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.conftest import Ran
from sartor import api
from sartor.errors import InputError
from sartor.step.measured_run import _student, run_change
from sartor.traces.kernel_trace import kernel_seconds, operator_seconds
from sartor.traces.read import read_kineto
from traces.kineto_hand import SIDE, Hand
from traces.kineto_made import Made, strength_for, write
from traces.logs_made import dump, megatron, torchtitan

NOISE, STEPS, PAIRS = 0.01, 10, 100


def pair(seed: int, change: float) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    rng = np.random.default_rng(seed)
    a, b = (2.0 * np.exp(rng.normal(0, NOISE, STEPS)) for _ in range(2))
    return a, b * (1 + change)


def test_a_change_of_3_percent_at_1_percent_noise_is_found_in_95_of_100_pairs() -> None:
    found = [run_change("step", *pair(seed, 0.03)).worse(0.02) for seed in range(PAIRS)]
    assert sum(found) >= 95


def test_equal_runs_raise_no_alarm_in_95_of_100_pairs() -> None:
    alarms = [run_change("step", *pair(seed, 0.0)) for seed in range(PAIRS)]
    assert sum(each.beyond(0.02) for each in alarms) <= 5
    assert sum(each.significant for each in alarms) <= 5


def test_one_slow_checkpoint_is_no_change() -> None:
    a, b = pair(1, 0.0)
    b[4] *= 3
    assert not run_change("step", a, b).beyond(0.02)


@given(st.integers(0, 2**16), st.floats(0.5, 2.0), st.floats(1e-6, 1e3))
def test_the_comparison_is_of_ratios(seed: int, change: float, unit: float) -> None:
    a, b = pair(seed, change - 1)
    one, other = run_change("step", a, b), run_change("step", unit * a, unit * b)
    assert (one.ratio, one.low, one.high) == pytest.approx((other.ratio, other.low, other.high))
    back = run_change("step", b, a)
    assert (back.ratio, back.low, back.high) == pytest.approx((1 / one.ratio, 1 / one.high, 1 / one.low))
    assert one.low <= one.ratio <= one.high


def test_more_questions_at_once_widen_the_interval() -> None:
    a, b = pair(3, 0.02)
    one, many = run_change("step", a, b), run_change("step", a, b, tests=100)
    assert many.low < one.low
    assert one.high < many.high


@pytest.mark.parametrize(("free", "true"), [(3, 5.841), (5, 4.032), (10, 3.169), (30, 2.750)])
def test_student_s_quantiles_are_the_tables_(free: int, true: float) -> None:
    assert _student(0.995, free) == pytest.approx(true, rel=0.01)


# ------------------------------------------------------------------------------------------------------ the command


def log(path: Path, times: list[float], memory_mb: float = 40000.0, **arguments: object) -> Path:
    path.write_text(dump(**arguments) + megatron((9.0, *times), memory_mb=memory_mb))
    return path


def test_a_slower_run_is_exit_code_1_and_a_faster_one_is_not(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    a, b = pair(5, 0.05)
    one, other = log(tmp_path / "a.log", list(a)), log(tmp_path / "b.log", list(b))
    slower, faster = sartor("compare", one, other, "--json"), sartor("compare", other, one, "--json")
    assert (slower.code, faster.code) == (1, 0)
    assert slower.body["schema"] == "sartor/compare/1"
    assert slower.body["worse"] == ["step"]
    assert (slower.body["changed"], faster.body["changed"]) == (True, True)
    assert slower.body["total"]["low"] < slower.body["total"]["ratio"] < slower.body["total"]["high"]
    assert sartor("compare", one, other, "--threshold", "0.1").code == 0


def test_more_memory_fails_too(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    a, b = pair(6, 0.0)
    one, other = log(tmp_path / "a.log", list(a)), log(tmp_path / "b.log", list(b), memory_mb=50000.0)
    assert sartor("compare", one, other).code == 1
    assert "reserved memory" in sartor("compare", one, other).out


def test_facts_that_differ_are_named(tmp_path: Path) -> None:
    a, b = pair(7, 0.0)
    one = log(tmp_path / "a.log", list(a))
    other = log(tmp_path / "b.log", list(b), recompute_granularity="full", seed=7)
    assert api.compare(one, other).facts == {"recompute_granularity": ("selective", "full")}


def test_steps_of_other_sizes_are_compared_per_token(tmp_path: Path) -> None:
    one = log(tmp_path / "a.log", [2.0, 2.01, 1.99, 2.0])
    other = tmp_path / "b.log"
    times = (9.0, 4.0, 4.02, 3.98, 4.0)
    other.write_text(dump(global_batch_size=128) + megatron(times, batch=128))
    found = api.compare(one, other)
    assert found.per_token
    assert found.total.ratio == pytest.approx(1.0, abs=0.01)


def test_tokens_of_one_gpu_tell_the_batch_where_those_of_the_job_are_not_known(tmp_path: Path) -> None:
    one, other = tmp_path / "a.log", tmp_path / "b.log"
    for path, step_s, tokens in ((one, 2.0, 16384), (other, 1.1, 8192)):
        _, steps = torchtitan((9.0, *(step_s * each for each in (1, 1, 1.005, 0.995, 1))), tokens=tokens).split("\n", 1)
        path.write_text(steps)  # without the line that tells the number of GPUs
    found = api.compare(one, other)
    assert found.per_token
    assert found.total.ratio == pytest.approx(1.1, rel=0.01)
    assert "16,384 tokens per GPU in A and 8,192 in B" in found.warnings[0]


def test_a_stall_every_fourth_step_is_a_slower_run(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    one = log(tmp_path / "a.log", [5.0, 5.01, 4.99, 5.0] * 9)
    other = log(tmp_path / "b.log", [5.0, 5.01, 4.99, 10.0] * 9)
    done = sartor("compare", one, other)
    said = " ".join(done.out.split())
    assert done.code == 1
    assert "B is slower" in said
    assert "B pauses: 9 of 5 s, every 4 steps" in said
    parts = {each["name"]: each for each in sartor("compare", one, other, "--json").body["parts"]}
    assert parts["stalls"]["a_s"] == 0
    assert parts["stalls"]["b_s"] == pytest.approx(1.25, rel=0.01)
    assert not parts["usual step"]["significant"]


def test_two_runs_of_one_log_are_compared(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    both = tmp_path / "both.log"
    both.write_text("".join(dump() + megatron((9.0, *[time_s] * 12)) for time_s in (2.0, 3.0)))
    found = sartor("compare", both, both, "--run-a", "1", "--json").body
    assert (found["total"]["a_s"], found["total"]["b_s"]) == (2.0, 3.0)
    assert "the log holds 2 runs" in sartor("compare", both, both, "--run-b", "3", "--json").refusal()


def test_too_few_steps_are_refused_in_one_sentence(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    one, other = log(tmp_path / "a.log", [2.0, 2.0, 2.0, 2.0]), log(tmp_path / "b.log", [2.0])
    assert "at least 3 are needed" in sartor("compare", one, other, "--json").refusal()
    with pytest.raises(InputError, match="threshold=-1"):
        api.compare(one, one, threshold=-1)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    a, b = pair(8, 0.02)
    one, other = log(tmp_path / "a.log", list(a)), log(tmp_path / "b.log", list(b))
    first = sartor("compare", one, other, "--json").out
    assert sartor("compare", one, other, "--json").out == first
    assert json.loads(first)["kind"] == "log"


# ---------------------------------------------------------------------------------------------------------- traces


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("traces")
    ragged = Made(seed=3, fault="ragged_vocab", strength=strength_for("ragged_vocab"))
    made = {"a": Made(seed=1), "b": Made(seed=2), "ragged": ragged, "short": Made(seed=1, steps=2)}
    return {name: write(each, folder / f"{name}.json.gz") for name, each in made.items()}


def test_two_healthy_traces_raise_no_alarm(traces: dict[str, Path], sartor: Callable[..., Ran]) -> None:
    done = sartor("compare", traces["a"], traces["b"], "--json")
    assert done.code == 0
    assert done.body["kind"] == "trace"
    assert done.body["worse"] == []


def test_the_operator_that_changed_is_the_first_part(traces: dict[str, Path], sartor: Callable[..., Ran]) -> None:
    done = sartor("compare", traces["a"], traces["ragged"], "--json")
    assert done.code == 1
    first = done.body["parts"][0]
    assert first["name"] == "aten::mm 8192x4096 4096x128256 -> 8192x4096 4096x128257"
    assert (first["in_a"]["sizes"], first["in_b"]["sizes"]) == ("8192x4096 4096x128256", "8192x4096 4096x128257")
    assert first["in_a"]["calls"] == first["in_b"]["calls"] == 1
    assert first["ratio"] == pytest.approx(1.36, abs=0.05)
    assert done.body["total"]["ratio"] == pytest.approx(1.05, abs=0.01)


def test_other_kernels_and_other_counts_of_an_operator_are_said(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    paths = tmp_path / "a.json", tmp_path / "b.json"
    for path, kernel, adds in zip(paths, ("old", "newer"), (1, 2), strict=True):
        hand = Hand()
        for number in range(4):
            begin = hand.at
            hand.kernel("aten::mm", kernel, 1000)
            for _ in range(adds):
                hand.kernel("aten::add", "plus", 500, dims=((SIDE, SIDE),))
            hand.mark(number, begin)
        hand.write(path)
    said = " ".join(sartor("compare", *paths).out.split())
    assert "aten::mm 8192x8192 8192x8192: by old only in A; by newer only in B" in said
    assert "aten::add 8192x8192: 1 -> 2 calls per step" in said


def test_lengths_and_counters_that_vary_are_one_operator_and_the_headline_names_what_changed(
    tmp_path: Path, sartor: Callable[..., Ran]
) -> None:
    paths = tmp_path / "a.json", tmp_path / "b.json"
    for path, length, dot in zip(paths, (14_851_501, 14_602_337), ("_3", "_5"), strict=True):
        hand = Hand()
        for number in range(2):
            begin = hand.at
            hand.kernel("aten::copy_", "copy", 1000, dims=((length,), (length,)))
            hand.kernel(f"triton_poi_fused{dot}", "triton", 1000, dims=((SIDE, SIDE),))
            hand.kernel("aten::add", "plus", 1500 if dot == "_5" else 1, dims=((SIDE, SIDE),))
            if dot == "_5":
                hand.kernel("aten::mul", "times", 500, dims=((SIDE, SIDE),))
            hand.mark(number, begin)
        hand.write(path)
    done = sartor("compare", *paths, "--json")
    names = {part["name"]: (part["a_s"] > 0, part["b_s"] > 0) for part in done.body["parts"]}
    assert names.pop("aten::mul 8192x8192") == (False, True)
    assert set(names.values()) == {(True, True)}
    assert "triton_poi_fused_3 8192x8192 -> triton_poi_fused_5 8192x8192" in names
    assert "aten::mul 8192x8192 (new)" in " ".join(sartor("compare", *paths).out.split())


def test_seconds_of_the_operators_sum_to_the_kernels(traces: dict[str, Path]) -> None:
    trace = read_kineto(traces["a"])
    took = float((trace.end_s - trace.begin_s).sum())
    assert sum(float(each.sum()) for each in operator_seconds(trace).values()) == pytest.approx(took)
    assert sum(float(each.sum()) for each in kernel_seconds(trace).values()) == pytest.approx(took)


def test_a_trace_without_enough_steps_is_compared_by_its_kernels(traces: dict[str, Path]) -> None:
    found = api.compare(traces["a"], traces["short"])
    assert found.total.name == "kernels"
    assert "fewer than 3 marked steps" in found.warnings[0]


def test_a_log_beside_a_trace_is_refused(traces: dict[str, Path], tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    assert "must be a trace" in sartor("compare", traces["a"], log(tmp_path / "b.log", [2.0] * 9), "--json").refusal()


@pytest.mark.parametrize("cut", [0, 5, 300, 40000])
def test_a_trace_cut_off_is_one_sentence(cut: int, traces: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(gzip.decompress(traces["a"].read_bytes())[:cut])
    with pytest.raises(InputError) as caught:
        read_kineto(path)
    assert "\n" not in str(caught.value)


def test_a_trace_without_kernels_says_what_was_not_profiled(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1, "args": {}}]}'
    )
    with pytest.raises(InputError, match="holds no GPU event"):
        read_kineto(path)


PUBLISHED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "traces"


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published traces of ../shared are not here")
def test_the_published_traces_are_read_and_their_kernels_belong_to_operators() -> None:
    known = {path.name: read_kineto(path) for path in sorted(PUBLISHED.glob("*.gz")) if path.stat().st_size < 8e5}
    assert len(known) == 5
    assert all((trace.operator >= 0).mean() > 0.7 for trace in known.values())
    assert known["h100_qwen1.5_0.5b_infer.json.gz"].gpu == "NVIDIA H100 80GB HBM3"
