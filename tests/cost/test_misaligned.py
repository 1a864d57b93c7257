"""GEMMs with misaligned operands on Hopper: kernels of their own, held to this project's records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sartor.bench.records_file import read_rows
from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.cost import Source
from sartor.cost.gpu.gemm import alignment_penalty, gemm_alternatives, gemm_cost
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, Gemm, Layout

HOPPER = ("h100_sxm", "h200_sxm")


def seconds(gpu: str, gemm: Gemm) -> float:
    known = load_gpu(gpu)
    return float(gemm_cost(gemm, known, load_calibration(known), clock=Clock.BOOST).time_s)


@pytest.mark.parametrize("gpu", HOPPER)
def test_one_misaligned_operand_costs_what_was_measured(gpu: str, repo_dir: Path) -> None:
    """Products of 4096 with one length a few more, in every layout; the sum of penalties assumed before was 31% off."""
    ratios = []
    for row in read_rows(repo_dir / "lab" / "records" / gpu / "alignment.csv"):
        m, n, k = (int(row[name]) for name in "mnk")
        first, second = (m if row["layout"] == "NT" else k), (k if row["layout"] == "TN" else n)
        if min(first % 8, second % 8, n % 8) == max(first % 8, second % 8, n % 8) == 0 or row["layout"] == "TILED":
            continue
        gemm = Gemm(name="row", m=m, n=n, k=k, layout=Layout(row["layout"]))
        ratios.append(seconds(gpu, gemm) / (float(row["latency_us"]) * 1e-6))
    assert len(ratios) > 40
    assert np.abs(np.asarray(ratios) - 1).mean() < 0.1


@pytest.mark.parametrize("gpu", HOPPER)
def test_padding_gpt2_s_vocabulary_gains_what_was_measured(gpu: str) -> None:
    """Logits of 8,192 tokens at h = 2560, forward, dgrad and wgrad: 6.2 times on the H200 (lab/records)."""

    def logits(v: int) -> float:
        shapes = ((8192, v, 2560, Layout.TN), (8192, 2560, v, Layout.NN), (v, 2560, 8192, Layout.NT))
        return sum(seconds(gpu, Gemm(name="logits", m=m, n=n, k=k, layout=layout)) for m, n, k, layout in shapes)

    assert logits(50257) / logits(50304) == pytest.approx(6.2, rel=0.15)


def test_a_measured_misalignment_is_not_called_assumed_and_a_borrowed_one_is() -> None:
    for gpu, source in (("h100_sxm", Source.CALIBRATED), ("b200_sxm", Source.ASSUMED)):
        known = load_gpu(gpu)
        for n in (4097, 4100):
            cost = gemm_cost(Gemm(name="p", m=4096, n=n, k=4096), known, load_calibration(known))
            assert cost.stated_source is source


def test_the_worst_operand_alone_decides() -> None:
    base = Gemm(name="p", m=4096, n=4096, k=4096, layout=Layout.NN)
    one, two = (
        seconds("h200_sxm", Gemm(name="p", m=4096, n=n, k=k, layout=Layout.NN)) for n, k in ((4095, 4096), (4095, 4095))
    )
    assert one > 4 * seconds("h200_sxm", base)
    assert two == pytest.approx(one, rel=0.02)


def test_the_ways_listed_of_a_misaligned_gemm_are_those_of_its_kernels() -> None:
    gpu = load_gpu("h200_sxm")
    gemm, known = Gemm(name="p", m=512, n=1365, k=4096), load_calibration(gpu)
    cost, listed = gemm_cost(gemm, gpu, known), gemm_alternatives(gemm, gpu, known)
    assert listed[0].time_s == cost.time_s
    assert listed[0].alignment == pytest.approx(cost.details["alignment"])


@pytest.mark.parametrize(("gpu", "least_off"), [("h100_sxm", 0.04), ("h200_sxm", 0.05)])
def test_a_tf32_length_of_8_bytes_takes_the_kernels_of_16_bits_at_half_their_rate(gpu: str, least_off: float) -> None:
    """768 x 2730 x 4096 took 143.5 us on H100 and 144.3 on H200 (lab/records, full.csv); a sum of penalties said 91."""
    assert seconds(gpu, Gemm(name="p", m=768, n=2730, k=4096, dtype=DType.TF32)) == pytest.approx(144e-6, rel=least_off)


def test_on_ampere_too_the_least_aligned_operand_decides() -> None:
    """A100's sweeps hold odd n in NN and odd k in TN; of one odd operand alone only Hopper's records tell."""
    c = load_calibration(load_gpu("a100")).gemm[DType.FP16]

    def penalty(layout: Layout, m: int = 4096, n: int = 4096, k: int = 4096) -> float:
        return float(alignment_penalty(Gemm(name="p", m=m, n=n, k=k, dtype=DType.FP16, layout=layout), c))

    swept = penalty(Layout.NN, n=4095)
    assert penalty(Layout.NN, k=4095) == penalty(Layout.NT, m=4095) == penalty(Layout.TN, n=4095) == swept
    assert penalty(Layout.TN, k=4095) > swept


def test_logits_over_an_odd_length_run_at_the_rate_that_was_published() -> None:
    """74 TFLOP/s on A100: linear layers of 8192 x 14336 with odd k around 51,200 (authors' logs of 2401.14489)."""
    odd = Gemm(name="p", m=8192, n=14336, k=51199, dtype=DType.FP16)
    assert odd.flops / seconds("a100", odd) / 1e12 == pytest.approx(74, rel=0.05)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.INT8_WO, DType.INT4_WO])
@pytest.mark.parametrize("gpu", ["mi300x", "mi350x", "h100_pcie", "gh200", "b200_sxm", "l40s", "a10"])
def test_what_misalignment_costs_is_no_less_certain_on_a_borrowed_calibration(gpu: str, dtype: DType) -> None:
    """MI300X in int8_wo: from 1/107 to 107 times 232 us, as MI308X's doubt was multiplied by that of the type and by
    that of the device, though what it doubts was assumed to begin with."""
    known = load_gpu(gpu)
    sizes, odd = {"m": 4096, "n": 4096, "k": 4096, "dtype": dtype}, {"k": 4097}
    even, off = (gemm_cost(Gemm(name="p", **each), known, load_calibration(known)) for each in (sizes, sizes | odd))
    assert off.stated_source is Source.ASSUMED or dtype is DType.BF16
    slowdown = np.log(off.time_s / even.time_s)
    assert off.log_sigma <= np.hypot(even.log_sigma, 1.0 + slowdown / 2)


def test_odd_lengths_cost_little_where_tensor_cores_are_slow() -> None:
    """The kernels do as much per SM and cycle on every GPU since Ampere: an RTX 4090 ran odd lengths at three quarters
    of its aligned rate, 107 TFLOP/s (issue 50, 2026-11); the penalty of Hopper's tensor cores made that 30."""
    known = load_gpu("rtx_4090")
    costs = [
        gemm_cost(Gemm(name="p", m=n, n=n, k=n), known, load_calibration(known), clock=Clock.BOOST)
        for n in (4096, 4095)
    ]
    aligned, odd = (2e-12 * 4096**3 / float(cost.time_s) for cost in costs)
    assert 0.65 < odd / aligned < 0.95
    assert abs(np.log(odd / 107)) < 1.2816 * float(costs[1].log_sigma)


def test_odd_lengths_run_at_one_rate_per_sm_and_cycle_on_hopper_and_on_slower_tensor_cores() -> None:
    def per_sm_cycle(name: str) -> float:
        gpu, gemm = load_gpu(name), Gemm(name="p", m=8191, n=8191, k=8191)
        cost = gemm_cost(gemm, gpu, load_calibration(gpu), clock=Clock.BOOST)
        return 2 * 8191**3 / float(cost.time_s) / gpu.num_sms / gpu.highest_clock_hz

    hopper = per_sm_cycle("h100_sxm")
    for name in ("h20", "l40s", "a40"):
        assert per_sm_cycle(name) == pytest.approx(hopper, rel=0.25)
