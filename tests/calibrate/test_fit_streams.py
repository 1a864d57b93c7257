"""Streaming kernels and attention from a user's records: what was put in comes out, and is read back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bench.fake_device import FACTS, FakeDevice, roofline_of
from sartor.bench.cases import BenchCase
from sartor.bench.journey import measure_cases
from sartor.bench.machine import look, streamed
from sartor.bench.suites import _products, attention, streams
from sartor.calibrate.calibration_toml import CalibrationFit, as_toml, calibrate
from sartor.calibrate.fit_streams import fit_streams, passed_over
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.correction.calibration_file import load_own_calibration
from sartor.cost.gpu.memory_bound import memory_bound_cost
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.operators import DType, MemoryBound

HOST = replace(FACTS, backend="cpu", gpu="my_host", num_sms=2, memory_bytes=8e9, threads=2)


@dataclass(frozen=True)
class Made:
    records: Path
    gpu: Gpu
    fit: CalibrationFit


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Records of a device whose streaming kernels reach a fifth of the bandwidth of its products, and its fit."""
    folder = tmp_path_factory.mktemp("records")
    device = FakeDevice(facts=HOST, seconds=lambda case: _slower(case) * PLAIN(case))
    scale = look(device)
    cases = [*_products(scale, DType.FP32, 40, most_s=0.03), *attention(scale, most_s=0.1)[:24], *streams(scale)]
    found = measure_cases(device, "test", lambda _: cases, folder / "r.csv", date="2026-11-21", budget_s=1e9)
    (folder / "mine.toml").write_text(found.machine)
    gpu = load_gpu(folder / "mine.toml")
    return Made(folder / "r.csv", gpu, calibrate(folder / "r.csv", str(folder / "mine.toml"), dtype="fp32", samples=20))


PLAIN = roofline_of(rate=2e11, bandwidth=2e10, launch_s=5e-6)


def _slower(case: BenchCase) -> float:
    return 5.0 if isinstance(case.work, MemoryBound) and case.work.kernel != "add" else 1.0


def test_a_kernels_share_of_bandwidth_is_found(made: Made) -> None:
    fit = made.fit.streams["memory_bound"]
    kinds = {name: share for name, share, *_ in fit.coefficients.kinds}
    assert kinds["add"] > 3 * kinds["softmax"]
    assert fit.after < 0.25
    assert fit.after < fit.before


def test_attention_is_nearer_than_before(made: Made) -> None:
    fit = made.fit.streams["attention"]
    assert fit.after <= fit.before


def test_what_is_written_is_what_is_read(made: Made, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(as_toml(made.fit))
    own = load_own_calibration(path, made.gpu)
    assert {"memory_bound", "attention", "gemm.fp32"} <= own.calibrated
    row = streamed("softmax", 2048, 1024, 2.0, DType.FP32)
    direct = replace(own, memory_bound=made.fit.streams["memory_bound"].coefficients)
    read, meant = (memory_bound_cost(row, made.gpu, each).time_s for each in (own, direct))
    assert read == pytest.approx(meant, rel=1e-4)
    assert own.attention.backward_fitted  # its records hold backward passes


def test_a_file_of_products_alone_has_no_further_sections(tmp_path: Path) -> None:
    path = tmp_path / "gemms.csv"
    lines = [f"a100,bf16,{m},{n},1024,{m * n / 1e5 + 5}" for m in (128, 256, 512, 1024) for n in (512, 1024, 2048)]
    path.write_text("gpu,dtype,m,n,k,latency_us\n" + "\n".join(lines) + "\n")
    gpu = load_gpu("a100")
    assert fit_streams(path, gpu, load_calibration(gpu)) == {}


def test_a_device_the_package_knows_keeps_its_sections(made: Made) -> None:
    known = load_calibration(load_gpu("a100"))
    assert fit_streams(made.records, made.gpu, known) == {}
    said = passed_over(made.records, made.gpu, known)
    assert ["memory-bound" in each for each in said] == [True, False]
    assert "24 rows are not used" in said[1]
    assert "fit of attention" in said[1]


@pytest.mark.parametrize(("line", "field"), [("hbm_share = -1.0", "hbm_share"), ("speed = 2.0", "speed")])
def test_a_section_that_makes_no_sense_is_refused(made: Made, tmp_path: Path, line: str, field: str) -> None:
    path = tmp_path / "own.toml"
    text = as_toml(made.fit)
    path.write_text(text[: text.index("[provenance.memory_bound]")] + f"[memory_bound]\n{line}\n")
    with pytest.raises(InputError, match=field):
        load_own_calibration(path, made.gpu)
