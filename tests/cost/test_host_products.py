"""Products on a host's cores: copies into blocks, fresh pages of large results, few rows read as they lie."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.correction.coefficients import FRESH_BYTES
from sartor.cost.gpu.gemm import AS_IT_LIES, gemm_cost
from sartor.hardware.catalog import gpu_from
from sartor.hardware.gpu import Gpu
from sartor.operators import DType, Gemm, Layout


@pytest.fixture(scope="module")
def host() -> Gpu:
    table = {
        "name": "a_host", "title": "a host", "vendor": "host", "generation": "cpu", "num_sms": 2, "hbm_gib": 16.0,
        "hbm_gb_per_s": 50.0, "l2_mib": 64.0, "boost_clock_mhz": 2600.0, "tdp_w": 100.0, "devices_per_node": 1,
        "peak_dense_tflops": {"fp32": 0.29, "bf16": 2.4},
    }  # fmt: skip
    return gpu_from(table, "a_host")


def seconds(host: Gpu, known: Calibration, m: int, n: int, k: int, dtype: DType, layout: Layout = Layout.TN) -> float:
    return float(gemm_cost(Gemm(name="x", m=m, n=n, k=k, dtype=dtype, layout=layout), host, known).time_s)


def without(known: Calibration, dtype: DType, **changes: float) -> Calibration:
    return replace(known, gemm={**known.gemm, dtype: replace(known.gemm[dtype], **changes)})


def test_a_transposed_first_operand_is_copied_once_for_every_block_of_columns(host: Gpu) -> None:
    known = load_calibration(host)
    once = without(known, DType.BF16, pack_columns=0.0)
    columns = int(known.gemm[DType.BF16].pack_columns)
    for n in (columns // 2, columns):
        assert seconds(host, known, 1024, n, 1024, DType.BF16, Layout.NT) == pytest.approx(
            seconds(host, once, 1024, n, 1024, DType.BF16, Layout.NT)
        )
    copy = [
        seconds(host, known, 1024, n, 1024, DType.BF16, Layout.NT)
        - seconds(host, once, 1024, n, 1024, DType.BF16, Layout.NT)
        for n in (2 * columns, 3 * columns)
    ]
    assert copy[0] > 0
    assert copy[1] == pytest.approx(2 * copy[0])


def test_other_layouts_copy_nothing_again(host: Gpu) -> None:
    known = load_calibration(host)
    once = without(known, DType.BF16, pack_columns=0.0)
    for layout in (Layout.TN, Layout.NN):
        assert seconds(host, known, 512, 4096, 512, DType.BF16, layout) == seconds(
            host, once, 512, 4096, 512, DType.BF16, layout
        )


def test_a_result_beyond_what_the_allocator_keeps_pays_for_fresh_pages(host: Gpu) -> None:
    known = load_calibration(host)
    kept = without(known, DType.BF16, fresh_cost=0.0)
    n = 4096
    m = int(FRESH_BYTES // (n * DType.BF16.bytes))
    assert seconds(host, known, m, n, 64, DType.BF16) == seconds(host, kept, m, n, 64, DType.BF16)
    assert seconds(host, known, m + 64, n, 64, DType.BF16) > seconds(host, kept, m + 64, n, 64, DType.BF16)


def test_few_rows_in_fp32_read_weights_as_they_lie_and_16_bits_copy_them_all_the_same(host: Gpu) -> None:
    for dtype, few_are_spared in ((DType.FP32, True), (DType.BF16, False)):
        known = load_calibration(host)
        none = without(known, dtype, pack_tn=0.0)
        few = [seconds(host, c, AS_IT_LIES, 4096, 4096, dtype) for c in (known, none)]
        more = [seconds(host, c, AS_IT_LIES + 1, 4096, 4096, dtype) for c in (known, none)]
        assert (few[0] == few[1]) is few_are_spared
        assert more[0] > more[1]
