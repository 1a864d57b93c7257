"""Steps of k dealt evenly to the SMs (stream-K): what it does to a wave that is not full."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sartor.cost.correction.calibration import Clock
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.gpu.gemm import _machine, _problem
from sartor.cost.gpu.tiles import Problems, alternatives, evaluate
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, Gemm
from sartor.units import FloatArray

WAVES = GemmCoefficients(tiles=((128, 128, 0.9), (64, 64, 0.7)), throttle=0.0)
EVEN = replace(WAVES, stream_k_cost=0.05, stream_k_fills=1.0)
GPU = load_gpu("a100_sxm")


def times(c: GemmCoefficients, gemm: Gemm, *, details: bool = False) -> dict[str, FloatArray]:
    arrays, shape = _problem(gemm, c)
    flat = Problems(**{name: np.broadcast_to(value, shape).ravel() for name, value in arrays.items()})
    return evaluate(flat, _machine(GPU, DType.BF16, c, Clock.BOOST), c, details)


def test_a_few_tiles_more_than_a_wave_cost_little_where_steps_are_dealt_evenly() -> None:
    """Twelve rows of nine tiles are A100's 108 SMs; the thirteenth row starts a second wave."""
    gemm = Gemm(name="up", m=np.array([12, 13]) * 128, n=9 * 128, k=8192, dtype=DType.BF16)
    full, more = times(WAVES, gemm)["time_s"]
    even_full, even_more = times(EVEN, gemm)["time_s"]
    assert even_full == full
    assert more / full > 1.2 > even_more / even_full > 13 / 12


@pytest.mark.parametrize("c", [WAVES, EVEN])
def test_the_least_time_is_that_of_one_tile_and_way(c: GemmCoefficients) -> None:
    random = np.random.default_rng(0)
    m, n, k = (np.round(np.exp(random.uniform(np.log(low), np.log(20000), 500))) for low in (1, 32, 32))
    gemm = Gemm(name="g", m=m.astype(int), n=n.astype(int), k=k.astype(int), dtype=DType.BF16)
    told = times(c, gemm, details=True)
    np.testing.assert_array_equal(times(c, gemm)["time_s"], told["time_s"])
    assert np.all((told["wave_efficiency"] > 0) & (told["wave_efficiency"] <= 1))
    assert np.all(told["split_k"] <= c.max_split)


def test_no_sm_takes_fewer_steps_than_the_work_divided_by_all_of_them() -> None:
    gemm = Gemm(name="g", m=np.arange(1, 4000, 7), n=1024, k=4096, dtype=DType.BF16)
    arrays, shape = _problem(gemm, EVEN)
    flat = Problems(**{name: np.broadcast_to(value, shape).ravel() for name, value in arrays.items()})
    machine = _machine(GPU, DType.BF16, EVEN, Clock.BOOST)
    found = alternatives(flat, machine, EVEN)
    least = 2 * flat.m * flat.n * flat.k / (machine.sm_flops_per_s * machine.num_sms)
    assert np.all(found["compute_s"] >= least)
