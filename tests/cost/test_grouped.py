"""Grouped GEMMs of experts: rows of whole tokens, narrow types, and what a network sees if no framework is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.bench.records_file import read_rows
from sartor.cost.correction.calibration import TORCH, Clock, load_calibration
from sartor.cost.correction.coefficients import GroupedCoefficients
from sartor.cost.correction.gemm_features import grouped_columns, grouped_features, walked_rows
from sartor.cost.cost import Source
from sartor.cost.gpu.gemm import gemm_cost
from sartor.cost.gpu.grouped import NOBODY_MEASURED, _least_load, grouped_cost, grouped_terms
from sartor.hardware.catalog import GPUS, load_gpu
from sartor.operators import DType, Gemm, GroupedGemm, Layout

B200 = load_gpu("b200_sxm")
PLAIN = GroupedCoefficients()
WHOLE_TOKENS = GroupedCoefficients(dragged=1.0)
TOKENS, CHOICES = 4096, 8
EXPERTS = GroupedGemm(name="e", groups=128, rows=TOKENS * CHOICES, n=3072, k=4096, tokens=TOKENS, experts=128)


def shared_by(devices: int) -> GroupedGemm:
    """Even routing over so many devices, without an exchange of tokens."""
    rows = TOKENS * CHOICES // devices
    here = 128 // devices
    return replace(EXPERTS, groups=here, experts=here, rows=rows, masked_rows=TOKENS * CHOICES - rows)


@pytest.mark.parametrize(("devices", "rows"), [(1, 32768), (4, 32768), (8, 32768), (16, 16384), (64, 4096)])
def test_a_kernel_handed_whole_tokens_computes_all_choices_of_those_with_a_row_here(devices: int, rows: int) -> None:
    op = shared_by(devices)
    computed, masked = walked_rows(op.rows, op.masked_rows, op.tokens, 1.0)
    assert computed == rows
    assert computed + masked == TOKENS * CHOICES


@given(st.integers(1, 8192), st.integers(0, 65536), st.integers(1, 8192), st.floats(0.0, 1.0))
def test_rows_walked_are_neither_lost_nor_made(rows: int, masked: int, tokens: int, dragged: float) -> None:
    tokens = min(tokens, rows + masked)
    computed, left = walked_rows(rows, masked, tokens, dragged)
    assert computed >= rows
    assert left >= -1e-9 * (rows + masked)
    assert computed + left == pytest.approx(rows + masked)


@pytest.mark.parametrize("devices", [1, 4, 8, 16])
def test_dragging_costs_nothing_on_one_device_and_time_on_several(devices: int) -> None:
    op = shared_by(devices)
    plain, whole = (grouped_terms(op, B200, c)["time_s"] for c in (replace(PLAIN, masked=0.0), WHOLE_TOKENS))
    assert whole == plain if devices == 1 else whole > plain


@pytest.mark.parametrize("name", ["h100_sxm", "b200_sxm", "mi300x", "l40s"])
@given(sequences=st.integers(1, 512), k=st.integers(1, 16), factor=st.integers(1, 32))
def test_an_expected_number_of_experts_reads_that_many_and_takes_longer_the_more_tokens_there_are(
    name: str, sequences: int, k: int, factor: int
) -> None:
    gpu, experts = load_gpu(name), k * factor
    tokens = np.arange(sequences, sequences + 3)
    expected = experts * (1 - (1 - k / experts) ** tokens)
    op = replace(EXPERTS, groups=expected, rows=tokens * k, tokens=tokens, experts=experts, n=2048, k=1024)
    terms = grouped_terms(op, gpu, load_calibration(gpu).grouped)
    read_s = expected * op.n * op.k * op.dtype.bytes / gpu.hbm_bytes_per_s
    assert np.all(np.diff(terms["time_s"]) >= -1e-15)
    assert np.all(terms["memory_s"] >= read_s)
    assert np.all(terms["time_s"] > terms["memory_s"])


@given(rows=st.integers(64, 512), groups=st.floats(32, 63), share=st.floats(0, 1))
def test_memory_time_is_linear_between_whole_numbers_of_experts(rows: int, groups: float, share: float) -> None:
    """Seconds of reading the expected weights are the expected seconds of reading weights."""
    below, above = np.floor(groups), np.floor(groups) + 1
    op = replace(EXPERTS, rows=rows, tokens=rows, groups=np.array([below, below + share, above]))
    low, middle, high = grouped_terms(op, B200, PLAIN)["memory_s"]
    assert middle == pytest.approx((1 - share) * low + share * high)
    whole = grouped_terms(replace(op, groups=int(below)), B200, PLAIN)["memory_s"]
    assert low == whole


def test_who_does_not_say_tokens_or_experts_means_a_token_for_every_row_and_every_expert_busy() -> None:
    said = replace(EXPERTS, tokens=EXPERTS.rows, experts=EXPERTS.groups)
    unsaid = replace(EXPERTS, tokens=0, experts=0)
    told, taken = (grouped_features(grouped_columns(op, (1,)), 2.25e15, WHOLE_TOKENS, B200) for op in (said, unsaid))
    np.testing.assert_array_equal(told, taken)
    assert np.isfinite(told).all()


@pytest.mark.parametrize("dtype", [DType.FP8, DType.FP8_BLOCK, DType.NVFP4, DType.MXFP4])
def test_narrow_experts_are_faster_than_wide_ones_and_less_certain(dtype: DType) -> None:
    calibration = load_calibration(B200)
    wide = grouped_cost(EXPERTS, B200, calibration)
    narrow = grouped_cost(replace(EXPERTS, dtype=dtype), B200, calibration)
    assert EXPERTS.flops / B200.peak_flops_per_s[dtype] < narrow.time_s < wide.time_s
    assert narrow.log_sigma >= NOBODY_MEASURED > wide.log_sigma


@pytest.mark.parametrize("name", ["mi300x", "mi308x", "mi325x", "mi355x"])
def test_experts_on_amd_are_calibrated_narrow_ones_too(name: str) -> None:
    gpu = load_gpu(name)
    calibration = load_calibration(gpu)
    wide, narrow = (
        grouped_cost(replace(EXPERTS, dtype=each), gpu, calibration) for each in (DType.BF16, DType.FP8_BLOCK)
    )
    assert wide.source is narrow.source is Source.CALIBRATED
    assert narrow.time_s < wide.time_s
    assert max(wide.log_sigma, narrow.log_sigma) < NOBODY_MEASURED / 2


def test_devices_of_one_die_price_experts_alike() -> None:
    """Whichever kernels a table has more rows of."""
    ops = [EXPERTS, replace(EXPERTS, rows=128, tokens=16), replace(EXPERTS, rows=262144, tokens=32768)]
    for op in ops:
        times = [
            grouped_cost(op, load_gpu(name), load_calibration(load_gpu(name))).time_s for name in ("b200_sxm", "gb200")
        ]
        assert times[0] == pytest.approx(times[1], rel=0.25)


def test_kernels_of_a_library_are_another_frameworks_where_its_own_were_not_measured() -> None:
    blackwell, hopper = (load_calibration(load_gpu(name)) for name in ("b200_sxm", "h200_sxm"))
    families = blackwell.grouped_families
    without = replace(blackwell, grouped_families={name: families[name] for name in ("trtllm", "sglang_trtllm")})
    assert without.with_kernels("vllm_trtllm").grouped == families["sglang_trtllm"]
    assert without.with_kernels("vllm_cutlass").grouped == families["trtllm"]
    assert hopper.with_kernels("vllm_trtllm").grouped == hopper.grouped_families["trtllm"]
    assert hopper.with_kernels("sglang_cutlass").grouped == hopper.grouped_families["sglang_cutlass"]
    for nobodys in ("nobody_triton", "vllm_xpu", ""):
        assert hopper.with_kernels(nobodys).grouped == hopper.grouped


def test_another_die_lends_the_library_not_what_a_framework_does_beside_it() -> None:
    borrowed = replace(
        load_calibration(load_gpu("h200_sxm")), calibrated=frozenset(), relative="h200_sxm", same_die=False
    )
    assert borrowed.with_kernels("sglang_cutlass").grouped == borrowed.grouped_families["trtllm"]


def test_four_bit_experts_of_a_framework_with_triton_s_kernels_run_its_others() -> None:
    """Triton has none; the middle of all families is 2.3 times slower in a short down projection."""
    down = replace(EXPERTS, groups=256, n=7168, k=512, tokens=4096, experts=256, dtype=DType.NVFP4)
    known = load_calibration(B200)
    by_name = grouped_cost(down, B200, known.with_kernels("sglang"))
    assert by_name.time_s == grouped_cost(down, B200, known.with_kernels("sglang_trtllm")).time_s
    assert by_name.time_s < 0.5 * grouped_cost(down, B200, known).time_s


ARRAYS = [name for name in GPUS.names() if load_gpu(name).matrix_tile]
SKEWS = 2 ** (np.arange(11) / 2)


@pytest.mark.parametrize("name", ARRAYS)
def test_experts_on_systolic_arrays_cost_no_more_than_plain_gemms_one_by_one(name: str) -> None:
    """They took up to 43 times as long, fed as one SM of a GPU is (TPU v7)."""
    gpu, draw = load_gpu(name), np.random.default_rng(0)
    calibration, dtype = load_calibration(gpu), gpu.default_dtype
    groups, n, k = draw.integers(1, 65, 500), 128 * draw.integers(1, 257, 500), 128 * draw.integers(1, 129, 500)
    each = np.rint(2 ** draw.uniform(0, 15, 500)).astype(np.int64)
    experts = GroupedGemm(name="e", groups=groups, rows=groups * each, n=n, k=k, dtype=dtype)
    one = gemm_cost(Gemm(name="p", m=each, n=n, k=k, dtype=dtype), gpu, calibration).time_s
    assert np.all(grouped_cost(experts, gpu, calibration).time_s <= groups * one * (1 + 1e-12))


@pytest.mark.parametrize("name", GPUS.names())
@pytest.mark.parametrize(("experts", "top_k", "n", "k"), [(8, 2, 28672, 4096), (256, 8, 4096, 7168)])
def test_uneven_experts_that_read_the_same_weights_are_never_faster(
    name: str, experts: int, top_k: int, n: int, k: int
) -> None:
    gpu = load_gpu(name)
    tokens, skews = np.array([[64], [1024], [16384]]), SKEWS[experts / top_k >= SKEWS]
    op = GroupedGemm(
        name="e", groups=experts, rows=tokens * top_k, n=n, k=k, tokens=tokens, experts=experts, skew=skews,
        visited_evenly=True, dtype=gpu.default_dtype,
    )  # fmt: skip
    time_s = np.asarray(grouped_cost(op, gpu, load_calibration(gpu)).time_s)
    assert np.all(np.diff(time_s) >= -1e-12 * time_s[:, 1:])
    for skew, mine in zip(skews, time_s[1], strict=True):
        one = replace(op, skew=float(skew), rows=1024 * top_k, tokens=1024)
        assert grouped_cost(one, gpu, load_calibration(gpu)).time_s == mine


@given(st.floats(1.0, 1e4))
def test_the_smallest_group_solves_its_equation_at_any_skew(skew: float) -> None:
    least = _least_load(skew)
    assert 0 < least <= 1
    assert least - np.log(least) == pytest.approx(min(skew - np.log(skew), -np.log(np.finfo(float).tiny)), rel=1e-6)


@pytest.mark.parametrize("name", ["h100_sxm", "h200_sxm"])
def test_pytorch_s_grouped_kernel_runs_at_the_rate_of_plain_gemms(name: str, repo_dir: Path) -> None:
    """``torch._grouped_mm`` of 128 experts (lab/records): as the middle of frameworks 46 and 54% off. Nothing is fitted
    to it."""
    gpu, off = load_gpu(name), []
    known = load_calibration(gpu).with_kernels(TORCH)
    for row in read_rows(repo_dir / "lab" / "records" / name / "model-qwen3-30b-a3b.csv"):
        if row["table"] == "grouped_gemm":
            groups, rows, n, k = (int(row[axis]) for axis in ("batch", "m", "n", "k"))
            op = GroupedGemm(name="row", groups=groups, rows=rows, n=n, k=k, layout=Layout(row["layout"]))
            off.append(abs(grouped_cost(op, gpu, known, clock=Clock.BOOST).time_s / float(row["latency_us"]) * 1e6 - 1))
    assert len(off) == 4
    assert max(off) < 0.08


def test_uneven_experts_add_tiles_to_pytorch_s_kernel_and_few_rows_are_bound_by_weights() -> None:
    gpu = load_gpu("h200_sxm")
    known = load_calibration(gpu).with_kernels(TORCH)
    op = replace(EXPERTS, rows=np.array([128, 1024, 65536]), skew=np.array([[1.0], [1.5], [4.0]]))
    time_s = np.asarray(grouped_cost(op, gpu, known).time_s)
    assert np.all(np.diff(time_s, axis=0) >= 0)
    assert time_s[2, 2] > 1.02 * time_s[0, 2]
    one = grouped_cost(replace(op, rows=1024, skew=1.5), gpu, known)
    assert one.time_s == time_s[1, 1]
    assert time_s[0, 0] < 1.3 * 128 * op.n * op.k * 2 / gpu.hbm_bytes_per_s
