"""A whole file of another device is said, or refused where its rows are faster than the named device can be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sartor.calibrate.fit import Index, Products, packaged_seconds
from sartor.calibrate.read_records import read_records
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType
from sartor.validate.accuracy import validate_operators


def made(
    path: Path,
    label: str,
    gpu: str,
    rows: int = 200,
    slower: float = 1.0,
    most: int = 100,
    columns: str = "m,n,k",
    few: bool = False,
) -> Path:
    """Rows of one device (4% of noise) under the label of another."""
    draw = np.random.default_rng(5)
    sizes: dict[str, Index] = {name: 64 * draw.integers(4, most, rows) for name in ("m", "n", "k")}
    sizes["m"] //= 64 if few else 1
    whole = np.ones(rows, dtype=np.int64)
    each = Products(gpu=load_gpu(gpu), dtype=DType.BF16, batch=whole, layouts=np.full(rows, "TN"), **sizes)
    seconds = slower * packaged_seconds(each) * np.exp(0.04 * draw.standard_normal(rows))
    lines = [
        f"{label},bf16,{m},{n},{k},{1e6 * s:.5f}" for m, n, k, s in zip(each.m, each.n, each.k, seconds, strict=True)
    ]
    path.write_text("\n".join([f"gpu,dtype,{columns},latency_us", *lines]))
    return path


def doubts(path: Path) -> list[str]:
    """What calibrate and validate say of all rows."""
    return [said for said in (*read_records(path).remarks, *validate_operators(path).remarks) if "all rows fit" in said]


@pytest.mark.parametrize(
    ("label", "gpu"),
    [("h100_sxm", "rtx_pro_6000_server"), ("h100_sxm", "a100_sxm"), ("b200_sxm", "h100_sxm")],
)
def test_a_whole_file_of_another_device_is_doubted_by_its_name(tmp_path: Path, label: str, gpu: str) -> None:
    said = doubts(made(tmp_path / "x.csv", label, gpu))
    assert len(said) == 2
    assert all(f"all rows fit {gpu} (median error" in each and f"much better than {label}" in each for each in said)


@pytest.mark.parametrize("gpu", ["a100_sxm", "h100_sxm", "rtx_pro_6000_server", "b200_sxm"])
@pytest.mark.parametrize("slower", [0.8, 1.0, 1.4, 1.7])
def test_a_device_that_is_slower_by_one_factor_is_not_doubted(tmp_path: Path, gpu: str, slower: float) -> None:
    assert not doubts(made(tmp_path / "x.csv", gpu, gpu, slower=slower))


@pytest.mark.parametrize("most", [48, 100])
def test_a_file_with_many_rows_faster_than_its_device_can_be_is_refused(tmp_path: Path, most: int) -> None:
    path = made(tmp_path / "x.csv", "h100_sxm", "b200_sxm", rows=60, most=most)
    with pytest.raises(
        InputError, match=r"must be times of h100_sxm: \d+ of 60 rows are faster than its datasheet"
    ) as why:
        read_records(path)
    assert why.value.nearest == "b200_sxm"
    said = " ".join(validate_operators(path).remarks)
    assert "of 60 shapes are faster than its datasheet allows" in said


@pytest.mark.parametrize("columns", ["n,m,k", "k,n,m"])
def test_sizes_in_another_order_than_their_columns_say_are_doubted(tmp_path: Path, columns: str) -> None:
    said = " ".join(read_records(made(tmp_path / "x.csv", "h200_sxm", "h200_sxm", columns=columns, few=True)).remarks)
    assert f"m, n, k: the rows fit much better with {columns.replace(',', ', ')} in their place" in said
    assert "exchanged" not in " ".join(read_records(made(tmp_path / "y.csv", "h200_sxm", "h200_sxm", few=True)).remarks)


@pytest.mark.parametrize(("gpu", "slower", "doubted"), [("h200_sxm", 2.0, True), ("h200_sxm", 1.3, False)])
def test_rows_all_slower_than_a_calibrated_device_are_doubted(
    tmp_path: Path, gpu: str, slower: float, doubted: bool
) -> None:
    said = " ".join(read_records(made(tmp_path / "x.csv", gpu, gpu, slower=slower)).remarks)
    assert ("a shared or throttled GPU" in said) is doubted
