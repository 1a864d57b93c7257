"""Steps as a time series: what counts is the mean, a few slow steps apart, and correlated steps tell less."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sartor.step.measured_run import run_change, step_series
from sartor.units import FloatArray

PAIRS = 150
Draw = Callable[[np.random.Generator, int], FloatArray]


def normal(share: float, mean: float = 5.0) -> Draw:
    return lambda rng, size: mean * (1 + rng.normal(0, share, size))


def stalled(every: int, more: float, first: int = 0) -> Draw:
    def steps(rng: np.random.Generator, size: int) -> FloatArray:
        return normal(0.01)(rng, size) + more * ((np.arange(size) + 1 + first) % every == 0)

    return steps


def correlated(alike: float, share: float = 0.05) -> Draw:
    def steps(rng: np.random.Generator, size: int) -> FloatArray:
        noise = rng.normal(0, share, size + 1)
        for i in range(size):
            noise[i + 1] = alike * noise[i] + np.sqrt(1 - alike**2) * noise[i + 1]
        return 5 * (1 + noise[1:])

    return steps


def heavy(often: float, times: float) -> Draw:
    return lambda rng, size: normal(0.02)(rng, size) * np.where(rng.random(size) < often, times, 1.0)


def found(a: Draw, b: Draw, size: int) -> int:
    """How many of `PAIRS` pairs are reported as different."""
    rng = np.random.default_rng(1)
    return sum(run_change("step", a(rng, size), b(rng, size)).significant for _ in range(PAIRS))


@pytest.mark.parametrize(("every", "more"), [(2, 4.0), (3, 5.0), (4, 5.0), (10, 10.0)])
def test_periodic_stalls_are_found(every: int, more: float) -> None:
    assert found(normal(0.01), stalled(every, more), 30) >= 0.95 * PAIRS


@pytest.mark.parametrize("size", [10, 30])
def test_3_percent_at_1_percent_noise_is_found(size: int) -> None:
    assert found(normal(0.01), normal(0.01, 5.15), size) >= 0.94 * PAIRS


@pytest.mark.parametrize(
    ("draw", "size"),
    [
        (normal(0.01), 30),
        (normal(0.05), 8),
        (correlated(0.5), 30),
        (correlated(0.9), 30),
        (correlated(0.9), 200),
        (heavy(0.2, 1.5), 30),
        (heavy(0.05, 3.0), 100),
        (heavy(0.02, 5.0), 100),
        (stalled(4, 5.0), 30),
    ],
)
def test_runs_alike_seldom_differ(draw: Draw, size: int) -> None:
    assert found(draw, draw, size) <= 0.05 * PAIRS


def test_stalls_in_another_phase_are_no_change() -> None:
    assert found(stalled(10, 10.0), stalled(10, 10.0, first=5), 34) == 0


def test_slow_steps_are_told_from_usual_ones() -> None:
    steps = stalled(4, 5.0)(np.random.default_rng(2), 40)
    series = step_series(steps)
    assert (int(series.slow.sum()), series.counts, series.period) == (10, True, 4)
    assert series.mean_s == pytest.approx(steps.mean())
    assert (series.middle_s, series.slow_s) == pytest.approx((5.0, 10.0), rel=0.02)


def test_one_checkpoint_is_not_part_of_the_mean() -> None:
    series = step_series(np.array([5.0, 5.0, 5.01, 40.0, 4.99, 5.0, 5.0]))
    assert not series.counts
    assert series.mean_s == pytest.approx(5.0, rel=0.001)


def test_a_slow_half_has_no_period() -> None:
    assert step_series(np.repeat([5.0, 9.0], 20)).period is None
    assert not step_series(np.full(20, 5.0)).slow.any()
