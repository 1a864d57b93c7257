"""Parity: statistics against scipy and hand-made curves, the text, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sartor.bench.cases import StackRun
from sartor.bench.parity import Curve, _t_quantile, compare_shapes, made_text, proxies
from sartor.errors import InputError

FIRST, SECOND = proxies(hidden_size=128, num_layers=2, num_heads=(8, 4), ffn=(512, 512), seq_len=64, batch=4)
STEPS = (16, 32, 64, 128)


@given(st.floats(0.6, 0.999), st.integers(1, 40))
def test_quantiles_of_t_are_scipys(p: float, degrees: int) -> None:
    assert _t_quantile(p, degrees) == pytest.approx(float(stats.t.ppf(p, degrees)), rel=1e-6)


def fake_train(gap: float, noise: float = 0.0, faster: float = 1.0) -> object:
    def train(run: StackRun, seed: int) -> Curve:
        """Loss 3 - 0.1 per doubling; the second shape is ``gap`` worse and ``faster`` times as fast."""
        rng = np.random.default_rng([seed, run.num_heads])
        is_second = run.num_heads == SECOND.num_heads
        losses = tuple(3 - 0.1 * math.log2(s) + gap * is_second + noise * float(rng.normal()) for s in STEPS)
        return Curve(steps=STEPS, losses=losses, step_s=1.0 / (faster if is_second else 1.0))

    return train


def test_difference_and_interval_are_those_of_a_paired_t_test() -> None:
    found = compare_shapes(FIRST, SECOND, range(6), fake_train(0.05, noise=0.02))  # type: ignore[arg-type]
    low, high = found.interval()
    theirs = stats.ttest_1samp(found.differences, 0.0).confidence_interval(0.95)
    assert (low, high) == (pytest.approx(theirs.low), pytest.approx(theirs.high))
    assert low < found.difference < high


@given(st.floats(1.0, 4.0), st.floats(-0.2, 0.2))
def test_equal_time_gives_the_faster_shape_its_further_steps(faster: float, gap: float) -> None:
    found = compare_shapes(FIRST, SECOND, (0, 1), fake_train(gap, faster=faster))  # type: ignore[arg-type]
    assert found.loss_per_doubling == pytest.approx(0.1)
    assert found.equal_time_difference == pytest.approx(gap - 0.1 * math.log2(faster))


def test_shapes_of_other_sizes_and_single_seeds_are_refused() -> None:
    with pytest.raises(InputError, match="parameters against the first"):
        compare_shapes(FIRST, replace(SECOND, ffn_hidden_size=1024), (0, 1), fake_train(0.0))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at least 2"):
        compare_shapes(FIRST, SECOND, (0,), fake_train(0.0))  # type: ignore[arg-type]


def test_heads_that_do_not_divide_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="must divide hidden_size 128; nearest: 8"):
        proxies(hidden_size=128, num_layers=2, num_heads=(9, 4), ffn=(512, 512), seq_len=64, batch=4)


def test_heads_alone_leave_parameters_as_they_are() -> None:
    assert FIRST.num_params == SECOND.num_params


def test_made_text_is_the_same_every_time_and_has_something_to_learn() -> None:
    text = made_text(20_000)
    assert text == made_text(20_000)
    assert len(text) == 20_000
    words = text.decode().replace(".", "").split()
    alone = _entropy(Counter(words))
    assert _entropy(Counter(pairwise(words))) - alone < alone - 1.0  # what comes next is told by what came, in bits


def _entropy(counts: Counter[Any]) -> float:
    shares = np.asarray(list(counts.values())) / counts.total()
    return float(-(shares * np.log2(shares)).sum())
