"""Figures of training runs: errors, ranking, shots and memory, on rows whose answer is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from records.made_tables import write_csv
from sartor.cli import app, run, validate
from sartor.errors import InputError
from sartor.report.accuracy_document import accuracy_view
from sartor.step.footprint import PEAK_SCALE
from sartor.validate.training_accuracy import (
    _peak_scale,
    _scales,
    by_source,
    training_body,
    training_charts,
    validate_training,
)
from sartor.validate.training_predictions import TrainingOutcome, drawn, planned, predict_training, ranking
from sartor.validate.training_rows import _training_case
from validate.training_rows_made import ROW, made


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    if not any(group.name == "validate" for group in app.registered_groups):
        validate.register(app)


def predicted(**changes: Any) -> TrainingOutcome:
    (found,) = predict_training([_training_case(made(**changes))])
    return found


def outcome(measured_s: float, predicted_s: float, **words: Any) -> TrainingOutcome:
    """An outcome whose step is four fifths compute and one fifth exposed communication."""
    parts = dict.fromkeys(("pp_bubble_s", "pp_transfer_s", "tp_s", "ep_s", "cp_s", "optimizer_s", "overhead_s"), 0.0)
    parts |= {"compute_s": 0.8 * predicted_s, "dp_exposed_s": 0.2 * predicted_s}
    case = _training_case(made(iter_time_s=measured_s, **words))
    return TrainingOutcome(
        case=case, predicted_s=predicted_s, low_s=0.9 * predicted_s, high_s=1.1 * predicted_s, naive_s=1.0, parts=parts
    )


def test_parts_add_up_and_take_at_least_the_peak() -> None:
    found = predicted()
    assert found.predicted_s == pytest.approx(sum(found.parts.values()))
    assert found.predicted_s > found.naive_s / 2
    assert found.log_sigma > 0


def test_runs_without_a_usable_measurement_are_counted_and_the_rest_judged(tmp_path: Path) -> None:
    times = ["8.0", "nan", "-3", "abc", ""]
    rows = [made(id=f"made-{i}", config_hash=str(i), iter_time_s=value) for i, value in enumerate(times)]
    body = training_body(validate_training(write_csv(tmp_path / "x.csv", rows)))
    assert body["left_out"] == {
        "iter_time_s is not a number above 0": 3, "neither iter_time_s nor peak_mem_gb is given": 1,
    }  # fmt: skip
    assert body["groups"][0]["targets"] == 1


def test_steps_in_another_unit_are_counted_or_remarked(tmp_path: Path) -> None:
    """In thousands of seconds none is possible; in milliseconds all are, and all off alike."""
    time_s = predicted().predicted_s
    rows = [made(id=f"made-{i}", config_hash=str(i), iter_time_s=time_s * 1e3) for i in range(5)]
    (remark,) = training_body(validate_training(write_csv(tmp_path / "x.csv", rows)))["remarks"]
    assert "as if they were milliseconds: is iter_time_s in seconds?" in remark
    assert "iter_time_s in seconds" in predicted(iter_time_s=time_s / 1e3).reason


def test_an_unknown_device_is_offered_the_nearest() -> None:
    assert "nearest: h" in predicted(gpu="H2000-SXM-80GB").reason


def test_forward_and_backward_alone_leave_the_optimizer_out() -> None:
    whole, part = predicted(n_gpu=1, tp=1, pp=1, dp=1), predicted(n_gpu=1, tp=1, pp=1, dp=1, run_kind="fwd_bwd_only")
    assert part.parts["optimizer_s"] == 0
    assert part.predicted_s == pytest.approx(
        whole.predicted_s - whole.parts["optimizer_s"] - whole.parts["dp_exposed_s"]
    )


def test_a_run_without_an_optimizer_needs_no_room_for_its_states() -> None:
    alone = {"n_gpu": 1, "tp": 1, "pp": 1, "dp": 1, "zero_stage": 0}
    whole, part = predicted(**alone), predicted(**alone, run_kind="fwd_bwd_only")
    assert whole.fit_probability < 0.01 < part.fit_probability


def test_memory_by_nvidia_smi_is_the_first_nodes_and_a_frameworks_own_the_fullest_devices() -> None:
    last = {"tp": 8, "dp": 1, "vocab": 10**6, "mbs": 8, "grad_accum": 8, "recompute": "full", "peak_mem_gb": 40}
    seen, own = (predicted(**last, mem_kind=kind).predicted_bytes for kind in ("nvidia-smi", "max reserved"))
    assert seen < own, "the last stage holds the logits"
    one = {**last, "pp": 1, "n_gpu": 8, "tp": 8}
    assert (
        predicted(**one, mem_kind="nvidia-smi").predicted_bytes > predicted(**one, mem_kind="reserved").predicted_bytes
    )


def test_a_table_of_our_own_predictions_has_no_error(tmp_path: Path) -> None:
    time_s = predicted().predicted_s
    rows = [{**ROW, "iter_time_s": time_s}, {**ROW, "iter_time_s": time_s * 1.25, "source": "b", "config_hash": "b"}]
    body = training_body(validate_training(write_csv(tmp_path / "x.csv", rows), group_by=["source"]))
    assert [group["mape"] for group in body["groups"]] == pytest.approx([0.2, 0], abs=1e-6)
    assert [group["source"] for group in body["groups"]] == ["b", "made"]
    assert body["groups"][1]["coverage_80"] == 1
    assert body["expressed"] == 2


def test_calibration_on_a_few_runs_takes_most_of_a_common_factor_away() -> None:
    runs = [outcome(2.0 * (i + 1), 1.5 * (i + 1), config_hash=i) for i in range(20)]
    after, more = drawn(runs, 3), drawn(runs, 15)
    assert set(after.index.tolist()) == set(range(20))
    left, whole = float(np.abs(np.log(after.ratio)).max()), float(np.log(2 / 1.5))
    assert left < 0.5 * whole
    assert float(np.abs(np.log(more.ratio)).max()) < 0.4 * left, "more runs outweigh the ridge"
    again = drawn(runs, 3)
    assert after.ratio.tolist() == again.ratio.tolist(), "the same rows give the same draws"


@given(st.floats(0, 0.3), st.floats(0.01, 0.3), st.integers(0, 99))
def test_errors_that_a_source_shares_are_told_from_those_of_its_runs(between: float, within: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    shared = np.repeat(between * draw.standard_normal(60), 10)
    ratios = np.exp(shared + within * draw.standard_normal(600))
    runs: Any = [
        SimpleNamespace(case=SimpleNamespace(words={"source": str(i // 10)}), ratio=ratio, covered=True)
        for i, ratio in enumerate(ratios.tolist())
    ]
    levels = by_source(runs)
    assert levels is not None
    assert levels["sources"] == 60
    assert levels["within_sigma"] == pytest.approx(within, rel=0.2)
    assert levels["between_sigma"] == pytest.approx(between, rel=0.4, abs=0.5 * within)
    assert 0.65 < levels["means_covered_80"] < 0.95
    assert by_source(runs[:10]) is None


def test_repeats_of_a_configuration_are_never_on_both_sides() -> None:
    runs = [outcome(1.0, 1.0, config_hash="same") for _ in range(6)]
    assert drawn(runs, 1).index.size == 0, "one configuration cannot be split"


def test_runs_to_look_at_are_chosen_without_their_times() -> None:
    sizes = [8, 16, 32, 64, 128, 512, 1024]
    runs = [outcome(2.0 + i, 1.5 + i, config_hash=i, n_gpu=size) for i, size in enumerate(sizes)]
    slower = [outcome(9.0 / (i + 1), 1.5 + i, config_hash=i, n_gpu=size) for i, size in enumerate(sizes)]
    looked_at = [set(range(len(sizes))) - set(planned(of, 2).index.tolist()) for of in (runs, slower)]
    assert looked_at[0] == looked_at[1]
    assert len(looked_at[0]) == 2
    assert planned(runs, len(sizes)).index.size == 0, "nothing is left to predict"


def test_a_planned_run_stands_for_those_like_it() -> None:
    alike = [outcome(1.0, 1.0, config_hash=i, model="often") for i in range(6)]
    runs = [*alike, outcome(1.0, 1.0, config_hash="x", model="seldom")]
    assert 6 in planned(runs, 1).index, "one run of the seven: not the one that tells of none"


def test_pairs_near_each_other_are_not_counted() -> None:
    plans = [outcome(1.00, 1.0, config_hash=1), outcome(1.01, 0.9, config_hash=2), outcome(1.5, 1.2, config_hash=3)]
    found = ranking(plans)
    assert (found.pairs, found.right) == (2, 2)
    assert found.regrets == (pytest.approx(0.01),)


def test_a_wrong_first_choice_costs_what_was_measured() -> None:
    plans = [outcome(1.0, 1.2, config_hash=1), outcome(1.3, 1.0, config_hash=2), outcome(2.0, 2.0, config_hash=3)]
    found = ranking(plans)
    assert found.pair_accuracy == pytest.approx(2 / 3)
    assert found.regret == pytest.approx(0.3)


def test_plans_of_other_batches_are_not_compared() -> None:
    assert ranking([outcome(1.0, 1.0, gbs=64), outcome(2.0, 1.0, gbs=128, config_hash="b")]).pairs == 0


def test_out_of_memory_is_right_when_it_is_said(tmp_path: Path) -> None:
    rows = [
        {**ROW, "tp": 1, "pp": 1, "dp": 1, "n_gpu": 1, "mbs": 64, "run_kind": "oom", "iter_time_s": ""},
        {**ROW, "recompute": "full"},
        {**ROW, "recompute": "unknown"},
    ]
    body = training_body(validate_training(write_csv(tmp_path / "x.csv", rows)))
    assert body["oom_correct"] == 1
    assert body["groups"][0]["targets"] == 2


def test_charts_have_a_point_per_run(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "n_gpu": 32, "dp": 8, "gbs": 128}]
    (chart,) = training_charts(validate_training(write_csv(tmp_path / "x.csv", rows)))
    assert len(chart["scatter"]) == 2
    assert {row["axis"] for row in chart["errors"]} == {"n_gpu", "seq", "gbs"}


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run_words(*words: object) -> tuple[int, str, str]:
        code = run([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_words


def test_json_has_the_contracts_keys(tmp_path: Path, call: Callable[..., Any]) -> None:
    path = write_csv(tmp_path / "x.csv", [ROW, {**ROW, "plan_known": 0}])
    code, out, _ = call("validate", "training", "--data", path, "--shots", 1, "--json")
    body = json.loads(out)
    assert (code, body["schema"]) == (0, "sartor/validate/1")
    assert {"memory_mape", "oom_correct", "pair_accuracy", "not_expressed", "top1_regret"} <= set(body)
    assert body["not_expressed"] == {"plan not published": 1}
    assert {"low_s", "high_s", "source"} <= set(body["groups"][0]["worst"][0])


def test_fine_tuning_is_read_from_its_own_table(tmp_path: Path, call: Callable[..., Any]) -> None:
    write_csv(tmp_path / "finetune.csv", [{**ROW, "run_kind": "lora_packed"}])
    code, out, _ = call("validate", "finetune", "--data", tmp_path, "--json")
    body = json.loads(out)
    assert (code, body["expressed"], body["groups"][0]["table"]) == (0, 1, "finetune")


def test_each_source_is_judged_with_a_scale_of_the_others() -> None:
    """A source far off is outside intervals that do not know it, however many runs it has."""
    near = {f"near-{i}": np.array([ratio, 1.01]) for i, ratio in enumerate((0.9, 0.97, 1.04, 1.2))}
    runs = [
        replace(outcome(1.0, 1.0, source=source, peak_mem_gb=60, mem_kind="max reserved"), predicted_bytes=60e9 * ratio)
        for source, each in (near | {"far": np.full(5, 3.0)}).items()
        for ratio in each
    ]
    scales = _scales(runs)
    assert scales["far"] == _peak_scale([-np.log(each) for each in near.values()])
    assert scales["far"] <= min(scale for source, scale in scales.items() if source != "far")
    assert _scales(runs[:4]) == dict.fromkeys(("near-0", "near-1"), PEAK_SCALE)


def test_a_scale_counts_each_source_once() -> None:
    few, many = np.array([0.1, -0.1]), np.full(100, 0.01)
    assert _peak_scale([few, many]) == _peak_scale([few, many[:1]]) == _peak_scale([np.tile(few, 50), many])
    assert _peak_scale([few, few]) == pytest.approx(0.1, rel=0.02), "of t with two degrees of freedom: |x| = scale"


def test_memory_is_judged_over_both_tables_with_the_runs_that_ran_out(tmp_path: Path, call: Callable[..., Any]) -> None:
    fits = {**ROW, "peak_mem_gb": 60, "mem_kind": "max reserved"}
    write_csv(tmp_path / "training.csv", [fits, {**ROW, "run_kind": "oom", "n_gpu": 1, "tp": 1, "pp": 1, "dp": 1}, ROW])
    write_csv(tmp_path / "finetune.csv", [{**fits, "run_kind": "lora_packed"}])
    code, out, _ = call("validate", "memory", "--data", tmp_path, "--json")
    body = json.loads(out)
    whole = body["overall"]
    assert (code, body["num_rows"], whole["targets"], whole["oom_rows"], whole["oom_recall"]) == (0, 4, 2, 1, 1.0)
    assert 0 <= whole["fit_calibration"] <= 0.9
    assert {"measured_bytes", "predicted_bytes", "kind"} <= set(body["groups"][0]["worst"][0])
    code, out, _ = call("validate", "memory", "--data", tmp_path, "--verbose")
    assert code == 0
    assert "GiB" in out
    assert "Of 1 run that ran out of memory, 100% are said not to fit" in out


def test_a_table_without_memory_is_refused(tmp_path: Path, call: Callable[..., Any]) -> None:
    path = write_csv(tmp_path / "x.csv", [ROW])
    code, _, err = call("validate", "memory", "--data", path)
    assert code == 2
    assert "has no row with peak_mem_gb" in err


@pytest.mark.parametrize("name", ["<b>x</b>", "a\x1b[31m", "ü" * 300])
def test_names_from_a_file_neither_colour_nor_become_markup(
    tmp_path: Path, call: Callable[..., Any], name: str
) -> None:
    path = write_csv(tmp_path / "x.csv", [ROW, {**ROW, "gpu": name}, {**ROW, "model": name}])
    code, out, _ = call("validate", "training", "--data", path, "--html", tmp_path / "x.html")
    page = (tmp_path / "x.html").read_text()
    assert code == 0
    assert "\x1b[31m" not in out
    assert "<b>x</b>" not in page


@pytest.mark.parametrize(
    ("words", "field"),
    [(("--shots", -1), "--shots"), (("--group-by", "gup"), "--group-by"), (("--calibration", "absent.toml"), "absent")],
)
def test_bad_words_are_one_sentence(tmp_path: Path, call: Callable[..., Any], words: Any, field: str) -> None:
    path = write_csv(tmp_path / "x.csv", [ROW])
    code, _, err = call("validate", "training", "--data", path, *words)
    assert code == 2
    assert field in err
    assert "Traceback" not in err


def test_a_file_without_any_usable_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none of its 1 rows can be predicted"):
        validate_training(write_csv(tmp_path / "x.csv", [{**ROW, "plan_known": 0}]))


def test_names_of_groups_are_read_on_a_narrow_terminal(tmp_path: Path) -> None:
    rows = [{**ROW, "source": f"laboratory-{i}", "config_hash": str(i)} for i in range(5)]
    body = training_body(validate_training(write_csv(tmp_path / "x.csv", rows), group_by=["source"], shots=2))
    console = Console(width=80, record=True, file=StringIO())
    console.print(accuracy_view(body, verbose=True))
    told = console.export_text()
    assert all(told.count(f"laboratory-{i}") >= 1 for i in range(5))
    assert "fits right" in told
