"""Figures on tables whose error is known: measured time = our prediction times a factor chosen here."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.made_tables import SHAPES, gemm_rows, write_csv, write_parquet
from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.cost import Z80
from sartor.cost.gpu.gemm import gemm_cost
from sartor.errors import InputError
from sartor.hardware import catalog
from sartor.hardware.catalog import load_gpu
from sartor.operators import Gemm
from sartor.records.tables import KINDS, read_tables
from sartor.records.targets import targets_of
from sartor.validate.accuracy import _quantile, validate_operators
from sartor.validate.predictions import too_fast


def test_a_perfect_table_has_no_error(tmp_path: Path) -> None:
    (group,) = validate_operators(write_parquet(tmp_path / "x.parquet", gemm_rows())).groups
    assert group.keys == {"table": "gemm", "gpu": "a100_sxm", "dtype": "bfloat16"}
    assert (group.rows, group.targets, group.expressed) == (12, 12, 12)
    assert group.mape == pytest.approx(0, abs=1e-12)
    assert group.coverage_80 == 1
    assert group.calibration == "own"


def test_a_factor_on_every_row_is_the_error_everywhere(tmp_path: Path) -> None:
    """measured = 1.25 x predicted: ratio = 0.8, so every error is 0.2 and the bias -0.2."""
    (group,) = validate_operators(write_parquet(tmp_path / "x.parquet", gemm_rows(1.25))).groups
    assert [group.mape, group.median_error, group.p90_error] == pytest.approx([0.2, 0.2, 0.2])
    assert group.bias == pytest.approx(-0.2)


def test_figures_follow_their_definitions(tmp_path: Path) -> None:
    """Ratios 1/f for factors 1, 1, ..., 2, 4: errors 0 (ten times), 0.5 and 0.75.

    mape = 1.25 / 12; median 0; the 90th percentile lies at 0.9 * 11 = 9.9 of the sorted errors: 0.9 of the way from the
    tenth (0) to the eleventh (0.5).
    """
    factors = [1.0] * 10 + [2.0, 4.0]
    (group,) = validate_operators(write_parquet(tmp_path / "x.parquet", gemm_rows(factors))).groups
    assert group.mape == pytest.approx(1.25 / 12)
    assert group.median_error == pytest.approx(0)
    assert group.p90_error == pytest.approx(0.45)
    assert group.coverage_80 == pytest.approx(10 / 12)
    assert [case["ratio"] for case in group.worst[:2]] == pytest.approx([0.25, 0.5])


def test_coverage_counts_what_lies_inside_the_interval(tmp_path: Path) -> None:
    shapes = [(8192, 8192, 8192), (8192, 8192, 8256)]
    gpu = load_gpu("a100_sxm")
    products = [Gemm(name="x", m=m, n=n, k=k) for m, n, k in shapes]
    costs = [gemm_cost(product, gpu, load_calibration(gpu), clock=Clock.BOOST) for product in products]
    edges = [math.exp(Z80 * float(cost.log_sigma)) for cost in costs]
    (group,) = validate_operators(
        write_parquet(tmp_path / "x.parquet", gemm_rows([edges[0] * 0.999, edges[1] * 1.001], shapes=shapes))
    ).groups
    assert group.coverage_80 == 0.5


def test_the_target_is_the_median_over_frameworks_and_versions(tmp_path: Path) -> None:
    rows = [
        {**row, "framework": name, "framework_version": version}
        for name, version, factor in (("a", "1", 0.9), ("a", "2", 1.0), ("b", "1", 1.6))
        for row in gemm_rows(factor)
    ]
    path = write_parquet(tmp_path / "x.parquet", rows)
    (group,) = validate_operators(path).groups
    assert (group.rows, group.targets) == (36, 12)
    assert group.mape == pytest.approx(0, abs=1e-12)
    assert group.measured_spread == pytest.approx((0.1 + 0 + 0.6) / 3)
    a, b = validate_operators(path, group_by=["framework"]).groups
    assert (a.keys["framework"], a.targets, b.targets) == ("a", 12, 12)
    assert a.bias == pytest.approx(1 / 0.95 - 1)  # its median is 0.95 of the prediction
    assert b.bias == pytest.approx(1 / 1.6 - 1)


def test_any_column_can_be_grouped_by(tmp_path: Path) -> None:
    rows = [{**row, "holdout_kind": "weight" if i % 2 else "row"} for i, row in enumerate(gemm_rows(1.25))]
    path = write_csv(tmp_path / "x.csv", rows)
    groups = validate_operators(path, group_by=["holdout_kind", "m"]).groups
    assert {group.keys["holdout_kind"] for group in groups} == {"row", "weight"}
    assert {group.keys["m"] for group in groups} == {64, 512, 4096}
    sizes = validate_operators(path, group_by=["size"]).groups
    assert [(g.keys["size"], g.targets) for g in sizes] == [("below 512", 4), ("m, n, k >= 512", 8)]


def test_rank_agreement_is_among_shapes_of_equal_work(tmp_path: Path) -> None:
    """Eight shapes of equal FLOPs: predictions in order agree with themselves, and disagree with their inverse."""
    shapes = [(4096 * 2**i, 4096 // 2**i, 4096) for i in range(-4, 4)]
    rows = gemm_rows(1.0, shapes=shapes)
    (same,) = validate_operators(write_parquet(tmp_path / "a.parquet", rows)).groups
    assert same.kendall_tau == pytest.approx(1.0)
    middle = math.sqrt(min(r["latency_us"] for r in rows) * max(r["latency_us"] for r in rows))
    inverse = [{**row, "latency_us": middle**2 / row["latency_us"]} for row in rows]
    (other,) = validate_operators(write_parquet(tmp_path / "b.parquet", inverse)).groups
    assert other.kendall_tau == pytest.approx(-1.0)
    alone = [{**row, "m": row["m"] * 4**i} for i, row in enumerate(rows[:4])]
    (none,) = validate_operators(write_parquet(tmp_path / "c.parquet", alone)).groups
    assert none.kendall_tau is None
    assert none.pair_accuracy is None


def test_pairs_in_order_are_those_that_every_pair_gives(tmp_path: Path) -> None:
    """All pairs of 60 shapes, one by one, against the share from arrays: work within 2%, times more than 5% apart."""
    draw = np.random.default_rng(7)
    shapes = [(int(m), int(2**18 // m) * 16, 4096) for m in draw.integers(16, 4096, 60)]
    rows = gemm_rows([float(f) for f in draw.lognormal(0, 0.2, 60)], shapes=shapes)
    (group,) = validate_operators(write_parquet(tmp_path / "x.parquet", rows), worst=60).groups
    cases = [(math.log(c["m"] * c["n"] * c["k"]), c["measured_s"], c["predicted_s"]) for c in group.worst]
    pairs = [(a, b) for i, a in enumerate(cases) for b in cases[:i] if abs(a[0] - b[0]) <= math.log(1.02)]
    apart = [(a, b) for a, b in pairs if abs(math.log(a[1] / b[1])) > math.log(1.05)]
    assert len(apart) > 100
    right = sum((a[1] < b[1]) == (a[2] < b[2]) for a, b in apart)
    assert group.pair_accuracy == pytest.approx(right / len(apart))


def test_an_unknown_gpu_is_counted_with_the_nearest_and_the_rest_evaluated(tmp_path: Path) -> None:
    rows = [*gemm_rows(), *({**row, "gpu": "h100_sxn"} for row in gemm_rows())]
    found = validate_operators(write_parquet(tmp_path / "x.parquet", rows))
    assert found.expressed == 12
    ((reason, count),) = found.not_expressed.items()
    assert count == 12
    assert "h100_sxn" in reason
    assert "h100_sxm" in reason
    assert {group.keys["gpu"]: group.mape for group in found.groups}["h100_sxn"] is None


def test_a_table_with_nothing_to_predict_is_said(tmp_path: Path) -> None:
    rows = [{**row, "gpu": "somebody's chip"} for row in gemm_rows()]
    with pytest.raises(InputError, match=r"none of its \d+ rows can be predicted .*not in the catalogue"):
        validate_operators(write_csv(tmp_path / "x.csv", rows))


def test_rows_faster_than_the_device_are_counted_not_averaged(tmp_path: Path) -> None:
    """8192^3 on an A100 takes 3.5 ms at peak; here a hundredth of it. (A thousandth is told as another unit.)"""
    shapes = [(8192, 8192, 8192), (8192, 8192, 4096)]
    rows = [*gemm_rows(), *gemm_rows(1e-2, shapes=shapes)]
    found = validate_operators(write_parquet(tmp_path / "x.parquet", rows))
    assert found.not_expressed == {too_fast(KINDS[0]): 2}
    assert found.groups[0].mape == pytest.approx(0, abs=1e-12)


def test_a_row_faster_than_the_device_is_counted_and_the_others_of_its_shape_compared(tmp_path: Path) -> None:
    shape = [(8192, 8192, 8192)]
    rows = [*gemm_rows(shapes=shape), *gemm_rows(1e-2, shapes=shape)]
    found = validate_operators(write_parquet(tmp_path / "x.parquet", rows))
    assert found.not_expressed == {too_fast(KINDS[0]): 1}
    assert (found.groups[0].rows, found.groups[0].expressed) == (1, 1)
    assert found.groups[0].mape == pytest.approx(0, abs=1e-12)


def test_a_kernel_that_moves_less_than_its_tensor_is_counted_not_compared(tmp_path: Path) -> None:
    row = {"gpu": "h100_sxm", "dtype": "bf16", "op": "norm", "rows": 8192, "cols": 4096, "latency_us": 60}
    rows = [{**row, "bytes": 4 * 8192 * 4096}, {**row, "bytes": 1}]
    found = validate_operators(write_csv(tmp_path / "x.csv", rows))
    assert found.not_expressed == {"bytes is less than one read of its rows x cols": 1}


def test_times_in_nanoseconds_are_suspected(tmp_path: Path) -> None:
    found = validate_operators(write_parquet(tmp_path / "x.parquet", gemm_rows(1e3)))
    assert any("1,000 x too long" in remark for remark in found.remarks)


@pytest.mark.parametrize(("dtype", "why"), [("int3_wo", "nearest: int8_wo"), ("fp7", "nearest: fp8")])
def test_what_no_operator_describes_is_counted_with_its_reason(tmp_path: Path, dtype: str, why: str) -> None:
    rows = [{**row, "dtype": dtype} for row in gemm_rows()]
    found = validate_operators(write_parquet(tmp_path / "x.parquet", [*gemm_rows(), *rows]))
    assert found.expressed == 12
    ((reason, count),) = found.not_expressed.items()
    assert (reason.split(":")[0], count) == (f"dtype {dtype}", 12)
    assert set(why.removeprefix("nearest: ").split(", ")) <= set(reason.split("nearest: ")[1].split(", "))


@pytest.mark.parametrize(
    ("factor", "unit"), [(1e3, "nanoseconds"), (1e-3, "milliseconds"), (1e6, "picoseconds"), (137.0, "")]
)
def test_one_remark_says_what_unit_the_times_seem_to_be_in(tmp_path: Path, factor: float, unit: str) -> None:
    """Products small enough not to break the datasheet's bound at any of them, on two devices."""
    shapes = [(1, 32, k) for k in (32, 33, 34, 35, 36, 37, 38)]
    rows = [row for gpu in ("a100_sxm", "h200_sxm") for row in gemm_rows(factor, gpu, shapes)]
    (remark,) = validate_operators(write_parquet(tmp_path / "x.parquet", rows)).remarks
    assert ("as if they were " + unit in remark) == bool(unit)
    assert "and 1 more" in remark


def test_a_collective_far_beyond_its_links_is_counted_not_averaged(tmp_path: Path) -> None:
    row = {"gpu": "h200_sxm", "dtype": "half", "op": "all_gather", "n_gpus": 8, "bytes": 2.0**30, "library": "NCCL"}
    rows = [{**row, "latency_us": 2900.0}, {**row, "bytes": 2.0**29, "latency_us": 1.5}]
    assert validate_operators(write_parquet(tmp_path / "x.parquet", rows)).not_expressed == {too_fast(KINDS[0]): 1}


def test_numbers_are_grouped_in_their_order(tmp_path: Path) -> None:
    found = validate_operators(write_parquet(tmp_path / "x.parquet", gemm_rows()), group_by=["n", "m"])
    assert [(group.keys["n"], group.keys["m"]) for group in found.groups] == [
        (n, m) for n in (1024, 4096) for m in (64, 512, 4096)
    ]


def test_a_column_called_as_a_figure_can_be_grouped_by_and_is_shown_among_the_worst(tmp_path: Path) -> None:
    stream = {"gpu": "a100_sxm", "dtype": "float16", "op": "rmsnorm", "cols": 4096, "latency_us": 50.0}
    rows = [{**stream, "rows": n, "bytes": n * 2.0**14} for n in (512, 4096)]
    found = validate_operators(write_parquet(tmp_path / "x.parquet", rows), group_by=["rows"])
    assert [(group.keys["by_rows"], group.rows, group.worst[0]["rows"]) for group in found.groups] == [
        (512, 1, 512),
        (4096, 1, 4096),
    ]


def test_the_worst_say_their_terms_and_whether_their_like_are_off_too(tmp_path: Path) -> None:
    shapes = [(4096, 4096, 4096 + 8 * i) for i in range(8)]
    rows = gemm_rows([3.0, *[1.0] * 7], shapes=shapes)
    (group,) = validate_operators(write_parquet(tmp_path / "x.parquet", [*rows, *rows]), worst=1).groups
    (case,) = group.worst
    assert case["near_targets"] == 7
    assert case["near_median_error"] == pytest.approx(0, abs=1e-9)
    assert case["measured_spread"] == pytest.approx(0, abs=1e-9)
    assert case["calibration"] == "own"
    whole = (max(case["compute_s"], case["memory_s"]) + case["overhead_s"]) * case["residual"]
    assert whole == pytest.approx(case["predicted_s"], rel=0.3)


def test_a_device_the_catalogue_lacks_is_priced_by_its_datasheet(tmp_path: Path) -> None:
    catalogue = Path(catalog.__file__).parent / "datasheets" / "l40s.toml"
    sheet = tmp_path / "mine.toml"
    sheet.write_text(catalogue.read_text("utf-8").replace('name = "l40s"', 'name = "my_card"'), "utf-8")
    rows = [{**row, "gpu": "my_card"} for row in gemm_rows(gpu="l40s")]
    path = write_parquet(tmp_path / "x.parquet", rows)
    with pytest.raises(InputError, match="not in the catalogue"):
        validate_operators(path)
    (group,) = validate_operators(path, gpus=[sheet]).groups
    assert group.expressed == len(rows)
    assert group.calibration == "joint"
    (pathed,) = validate_operators(
        write_parquet(tmp_path / "y.parquet", [{**row, "gpu": str(sheet)} for row in rows])
    ).groups
    assert pathed.mape == group.mape


def test_a_folder_of_several_kinds_is_one_answer(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", gemm_rows())
    attention = {"gpu": "h200_sxm", "dtype": "bfloat16", "phase": "context", "batch": 1, "heads": 32, "kv_heads": 8}
    attention |= {"head_dim": 128, "seq_q": 4096, "seq_kv": 4096, "window": 0, "causal": True, "latency_us": 700.0}
    write_parquet(tmp_path / "b.parquet", [attention, {**attention, "phase": "generation", "seq_q": 1}])
    moe = {"gpu": "h200_sxm", "dtype": "bfloat16", "num_tokens": 256, "hidden_size": 4096, "inter_size": 14336}
    moe |= {"topk": 2, "num_experts": 8, "moe_tp_size": 1, "moe_ep_size": 1, "distribution": "balanced"}
    write_csv(tmp_path / "c.csv", [{**moe, "latency_us": 900.0}, {**moe, "distribution": "odd", "latency_us": 9.0}])
    collective = {"gpu": "h200_sxm", "dtype": "half", "op": "all_reduce", "n_gpus": 8, "gpus_per_node": 8}
    collective |= {"bytes": 2.0**26, "library": "NCCL", "latency_us": 300.0}
    write_csv(tmp_path / "d.csv", [collective, {**collective, "n_gpus": 16}, {**collective, "library": "x_eager"}])
    stream = {"gpu": "a100_sxm", "dtype": "float16", "op": "rmsnorm", "rows": 4096, "cols": 4096, "bytes": 2.0**26}
    write_csv(tmp_path / "e.csv", [{**stream, "latency_us": 50.0}, {**stream, "op": "dance", "latency_us": 50.0}])
    found = validate_operators(tmp_path)
    assert {group.keys["table"] for group in found.groups} == {
        "gemm", "attention", "moe", "collectives", "memory_bound"
    }  # fmt: skip
    assert found.expressed == 12 + 2 + 1 + 2 + 1  # a serving engine's eager all-reduce has a formula of its own
    assert sum(found.not_expressed.values()) == 3
    assert all(case["bound_by"] for group in found.groups for case in group.worst)


def test_the_same_file_gives_the_same_figures(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", gemm_rows(np.linspace(0.8, 1.4, len(SHAPES)).tolist()))
    assert validate_operators(path).groups == validate_operators(path).groups


def test_nothing_usable_at_all_is_an_error(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [{"x": 1}])
    write_csv(tmp_path / "b.csv", [{"y": 1}])
    with pytest.raises(InputError, match="none of its 2 files can be used"):
        validate_operators(tmp_path)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.tuples(st.floats(0, 10), st.integers(0, 3)), min_size=1, max_size=40),
    q=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_group_quantiles_are_numpys(values: list[tuple[float, int]], q: float) -> None:
    v, g = np.asarray([a for a, _ in values]), np.asarray([b for _, b in values])
    found = _quantile(v, g, 4, q, np.ones(v.size, dtype=bool))
    for group in range(4):
        mine = v[g == group]
        assert np.isnan(found[group]) if not mine.size else found[group] == pytest.approx(np.quantile(mine, q))


def test_a_kernel_called_nongated_speaks_for_its_shape_on_its_own_device(tmp_path: Path) -> None:
    layer = {"dtype": "bfloat16", "num_tokens": 256, "hidden_size": 2688, "inter_size": 1856, "topk": 6}
    layer |= {"num_experts": 128, "moe_tp_size": 1, "moe_ep_size": 1, "distribution": "balanced", "latency_us": 900.0}
    plain = {**layer, "gpu": "h200_sxm", "kernel": "moe_torch_flow_nongated", "framework": "trtllm"}
    rows = [plain, {**plain, "num_tokens": 512, "kernel": "moe_torch_flow_cutlass"}]
    rows.append({**layer, "gpu": "a100_sxm", "kernel": "vllm_fused_moe", "framework": "vllm"})
    targets = targets_of(read_tables(write_parquet(tmp_path / "x.parquet", rows), ()).tables)
    told = sorted((targets.words(i)["gpu"], targets.words(i)["gated"]) for i in range(len(targets)))
    assert told == [("a100_sxm", True), ("h200_sxm", False), ("h200_sxm", False)]


def test_rates_above_the_peak_are_asked_for_the_unit_of_their_own_column(tmp_path: Path) -> None:
    row = {"gpu": "h100_sxm", "dtype": "bf16", "n": 4096, "k": 4096}
    rows = [{**row, "m": 4096, "mamf_tflops": 700}, {**row, "m": 8192, "mamf_tflops": 5000}]
    found = validate_operators(write_parquet(tmp_path / "x.parquet", rows))
    assert found.not_expressed == {"faster than 1.1 x what the datasheet allows: is mamf_tflops in TFLOP/s?": 1}
