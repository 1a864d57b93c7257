"""Rows of another device in a table: told where the two devices differ enough; a device that is itself unusual stays
whole. Real tables where /work/shared is there, drawn ones everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from sartor.calibrate.fit import Index, Products, packaged_seconds
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.gpu.attention import attention_cost
from sartor.hardware.catalog import load_gpu
from sartor.operators import Attention, DType
from sartor.records.strangers import COPIED, Timed, strangers
from sartor.records.tables import read_tables
from sartor.records.targets import targets_of
from sartor.units import FloatArray
from sartor.validate.predictions import predict

ROWS = 400


def drawn(gpu: str, rows: int = ROWS) -> Products:
    """Decode and prefill shapes: half of them held up by memory."""
    draw = np.random.default_rng(11)
    sizes: dict[str, Index] = {name: 256 * draw.integers(4, 64, rows) for name in ("n", "k")}
    m = 2 ** draw.integers(0, 14, rows)
    layouts = np.full(rows, "TN")
    return Products(gpu=load_gpu(gpu), dtype=DType.BF16, batch=np.ones_like(m), m=m, layouts=layouts, **sizes)


def times(products: Products, noise: float = 0.03) -> FloatArray:
    found: FloatArray = packaged_seconds(products)
    return found * np.exp(noise * np.random.default_rng(12).standard_normal(found.size))


@dataclass(frozen=True)
class Judged:
    left_out: FloatArray
    reasons: list[str]


def judged(products: Products, measured_s: FloatArray) -> Judged:
    """Rows as a file holds them, five digits each."""
    timed = Timed(
        gpu=products.gpu,
        dtype=products.dtype,
        section=f"gemm.{products.dtype.value}",
        sizes=np.log(np.stack([products.m, products.n, products.k]).astype(float)),
        measured_s=np.asarray([float(f"{each:.5g}") for each in measured_s]),
        predicted_s=packaged_seconds(products),
        predict=lambda gpu, some: packaged_seconds(replace(products.part(some), gpu=gpu)),
    )
    found, reasons = np.zeros(len(products), dtype=bool), []
    for reason, mask in strangers(timed):
        found |= mask
        reasons += [reason] if mask.any() else []
    return Judged(left_out=found, reasons=reasons)


def with_rows_of(other: str, products: Products, share: float = 0.3) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Times, which rows are the other device's, and how far apart the devices are predicted to be (ln)."""
    foreign, own = replace(products, gpu=load_gpu(other)), times(products)
    mixed = np.random.default_rng(13).random(len(products)) < share
    apart = np.abs(np.log(packaged_seconds(foreign) / packaged_seconds(products)))
    return np.where(mixed, times(foreign), own), mixed, apart


def test_h100_rows_in_an_h200_file_are_told_where_memory_holds_them_up() -> None:
    products = drawn("h200_sxm")
    seconds, mixed, apart = with_rows_of("h100_sxm", products)
    found = judged(products, seconds)
    assert found.left_out[mixed & (apart > 0.2)].mean() > 0.9
    assert found.left_out[~mixed].mean() < 0.01


@pytest.mark.parametrize("share", [0.04, 0.1, 0.2, 0.3, 0.4])
def test_a_minority_of_any_size_is_told_though_both_devices_are_off_by_different_factors(share: float) -> None:
    """The file's own device runs 10% slower than predicted, the other as predicted."""
    products = drawn("h100_sxm", 100)
    seconds, mixed, _ = with_rows_of("a100_sxm", products, share)
    assert mixed.sum() >= 3
    found = judged(products, np.where(mixed, seconds, 1.1 * seconds))
    assert found.reasons == ["a time that looks measured on another device (a100_sxm)"]
    assert found.left_out[mixed].mean() > 0.8
    assert not found.left_out[~mixed].any()


def test_the_finding_names_the_device_and_how_many_of_its_rows_cannot_be_told() -> None:
    products = drawn("h200_sxm")
    seconds, mixed, _ = with_rows_of("h100_sxm", products)
    found = judged(products, seconds)
    (reason,) = found.reasons
    assert reason.startswith("a time that looks measured on another device (h100_sxm; about ")
    more = int(reason.split("about ")[1].split()[0])
    assert more == pytest.approx(mixed.sum() - found.left_out.sum(), rel=0.3)


def test_rows_of_a_device_with_the_same_die_and_memory_cannot_be_told_and_none_is_accused() -> None:
    products = drawn("gb200")
    seconds, _, _ = with_rows_of("b200_sxm", products)
    assert judged(products, seconds).reasons == []


UNUSUAL: dict[str, Callable[[Products], FloatArray]] = {
    "memory a third slower": lambda each: np.where(each.m <= 256, 1.35, 1.0),
    "another kernel for few rows": lambda each: np.where(each.m <= 16, 1.4, 1.0),
    "a clock a quarter slower": lambda each: np.where(each.m >= 1024, 1.25, 1.0),
}


@pytest.mark.parametrize("how", UNUSUAL)
@pytest.mark.parametrize("gpu", ["h100_sxm", "h200_sxm", "b200_sxm"])
def test_a_device_that_is_unusual_by_itself_loses_almost_no_row(gpu: str, how: str) -> None:
    products = drawn(gpu)
    assert judged(products, times(products) * UNUSUAL[how](products)).left_out.mean() < 0.01


@pytest.mark.parametrize(("rows", "count"), [(60, 18), (200, 60)])
def test_of_copied_times_nearly_all_that_differ_from_their_own_are_found(rows: int, count: int) -> None:
    products = drawn("h200_sxm", rows)
    own = times(products)
    seconds = own.copy()
    seconds[:count] = own[np.random.default_rng(14).integers(count, rows, count)]
    found = judged(products, seconds)
    wrong = np.abs(np.log(seconds / own)[:count]) > np.log(1.3)
    assert found.reasons == [COPIED]
    assert found.left_out[:count][wrong].mean() > 0.9
    assert found.left_out[count:].mean() < 0.03


def test_attention_rows_of_another_device_are_told_by_validate(tmp_path: Path) -> None:
    axes = np.meshgrid([1, 2, 4, 8, 16], [8, 16, 32, 64], 2 ** np.arange(9, 15), [64, 128], indexing="ij")
    batch, heads, seq, width = (axis.ravel() for axis in axes)
    sizes = {"batch": batch, "num_heads": heads, "num_kv_heads": heads, "seq_q": seq, "seq_kv": seq}
    product = Attention(name="attention", head_dim=width, v_head_dim=width, causal=True, dtype=DType.BF16, **sizes)
    own, other = (
        attention_cost(product, gpu, load_calibration(gpu)).time_s for gpu in map(load_gpu, ("h100_sxm", "a100_sxm"))
    )
    draw = np.random.default_rng(16)
    mixed = draw.random(batch.size) < 0.25
    seconds = np.where(mixed, other, own) * np.exp(0.03 * draw.standard_normal(batch.size))
    rows = zip(batch, heads, width, seq, seconds, strict=True)
    lines = [f"h100_sxm,bf16,context,{b},{h},{h},{d},{q},{q},{1e6 * s:.5g}" for b, h, d, q, s in rows]
    header = "gpu,dtype,phase,batch,heads,kv_heads,head_dim,seq_q,seq_kv,latency_us"
    (tmp_path / "attention.csv").write_text("\n".join([header, *lines]))
    found = predict(targets_of(read_tables(tmp_path / "attention.csv").tables))
    (reason,) = {found.reasons[i] for i in found.reason[~found.expressed]}
    assert "another device (a100_sxm" in reason
    assert 0.8 * mixed.sum() < (~found.expressed).sum() <= mixed.sum() + 2


# ------------------------------------------------------------------------------------------- real tables


@pytest.fixture(scope="module")
def real(request: pytest.FixtureRequest) -> Callable[[str, str], tuple[Products, FloatArray]]:
    """A GPU's bf16 rows of one framework; skipped without the shared data."""
    shared: Path = request.getfixturevalue("shared_dir")
    table = shared / "data" / "measured" / "gemm_fp16_bf16.parquet"
    targets = targets_of(read_tables(table, ("framework",)).tables, ("framework",))
    names = {name: np.asarray(targets.coded[name].plain()) for name in ("gpu", "framework", "layout")}

    def rows(gpu: str, framework: str) -> tuple[Products, FloatArray]:
        where = np.flatnonzero((names["gpu"] == gpu) & (names["framework"] == framework))
        some = np.random.default_rng(15).permutation(where)[:1000]
        sizes = {name: targets.numbers[name][some].astype(np.int64) for name in ("batch", "m", "n", "k")}
        layouts = np.full(some.size, "TN")
        return Products(gpu=load_gpu(gpu), dtype=DType.BF16, layouts=layouts, **sizes), targets.measured_s[some]

    return rows


@pytest.mark.parametrize("gpu", ["a100_sxm", "b200_sxm", "gb300", "h100_sxm", "h200_sxm", "rtx_pro_6000_server"])
@pytest.mark.parametrize("framework", ["vllm", "sglang", "trtllm"])
def test_a_real_table_loses_less_than_one_row_in_a_hundred(
    real: Callable[[str, str], tuple[Products, FloatArray]], gpu: str, framework: str
) -> None:
    assert judged(*real(gpu, framework)).left_out.mean() < 0.01


@pytest.mark.parametrize("framework", ["vllm", "trtllm"])
@pytest.mark.parametrize(
    ("gpu", "other", "told"),
    [("h200_sxm", "h100_sxm", 0.75), ("h100_sxm", "h200_sxm", 0.75), ("h200_sxm", "a100_sxm", 0.9)],
)
def test_real_rows_of_another_device_are_told_where_the_two_differ(
    real: Callable[[str, str], tuple[Products, FloatArray]], gpu: str, other: str, told: float, framework: str
) -> None:
    own, own_s = real(gpu, framework)
    foreign, foreign_s = real(other, framework)
    joined = {
        name: np.concatenate([getattr(own, name)[:700], getattr(foreign, name)[:300]])
        for name in ("batch", "m", "n", "k", "layouts")
    }
    found = judged(replace(own, **joined), np.concatenate([own_s[:700], foreign_s[:300]]))
    part = foreign.part(np.arange(300))
    apart = np.abs(np.log(packaged_seconds(part) / packaged_seconds(replace(part, gpu=own.gpu)))) > np.log(1.2)
    assert other in " ".join(found.reasons)
    assert found.left_out[700:][apart].mean() > told
    assert found.left_out[:700].mean() < 0.01
