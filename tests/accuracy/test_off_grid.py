"""GEMMs of lengths that no table holds, against records of an H100 and an H200 (lab/records)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))

from fit_off_grid import GPUS, coarse_of, error_of, inside, picked, rows_of, share_of
from sartor.cost.correction.calibration import load_calibration
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType

pytestmark = pytest.mark.parametrize(("gpu", "other"), [GPUS, GPUS[::-1]])


def test_gemms_aligned_to_16_bytes_only_are_nearer_by_what_the_other_gpu_took(gpu: str, other: str) -> None:
    rows = coarse_of(other)
    assert len(rows) > 100
    assert error_of(other, rows, share_of(gpu)) < 0.8 * error_of(other, rows, 0.0) < 0.08


def test_the_share_that_ships_is_that_of_either_gpu(gpu: str, other: str) -> None:
    assert share_of(gpu) == pytest.approx(load_calibration(load_gpu(other)).gemm[DType.BF16].coarse_share, abs=0.03)


def test_intervals_of_sizes_at_random_hold_what_they_say(gpu: str, other: str) -> None:
    assert 0.75 <= inside(gpu, rows_of(gpu, ("random",))) <= 0.88


def test_of_gemms_with_equal_work_the_faster_is_picked(gpu: str, other: str) -> None:
    right, pairs = picked(gpu, rows_of(gpu, ("random",)))
    assert pairs > 40
    assert right / pairs >= 0.9
