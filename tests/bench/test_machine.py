"""My machine as a datasheet, and what machines say of themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.fake_device import FACTS, FakeDevice, roofline_of
from sartor.bench import torch_device
from sartor.bench.journey import measure
from sartor.bench.machine import _best_rates, _cache_bytes, machine_toml
from sartor.bench.torch_device import _catalogue_name, slug
from sartor.calibrate.calibration_toml import calibrate
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType

HOST = replace(FACTS, backend="cpu", gpu="my_host", num_sms=2, memory_bytes=8e9, threads=2)


def test_records_become_a_datasheet_and_the_datasheet_a_calibration(tmp_path: Path) -> None:
    device = FakeDevice(facts=HOST, seconds=roofline_of(rate=2e11, bandwidth=2e10, launch_s=5e-6), noise=0.01)
    found = measure(device, "quick", tmp_path / "r.csv", date="2026-11-21", budget_s=1e9)
    sheet = tmp_path / "mine.toml"
    sheet.write_text(found.machine)
    gpu = load_gpu(sheet)
    assert gpu.name == "my_host"
    assert gpu.peak_flops_per_s[DType.FP32] == pytest.approx(2e11, rel=0.1)
    assert gpu.hbm_bytes_per_s == pytest.approx(2e10, rel=0.1)
    fit = calibrate(tmp_path / "r.csv", str(sheet), dtype="fp32", samples=25)
    assert fit.held_out["mape"] < 0.10


def test_a_machine_without_products_or_streams_is_not_described() -> None:
    with pytest.raises(InputError, match="at least one GEMM and one large streaming kernel"):
        machine_toml([], HOST, "2026-11-21")


def test_a_narrow_type_that_is_converted_on_the_way_is_no_peak_of_the_machine() -> None:
    def row(dtype: str, seconds: float) -> dict[str, object]:
        product = {"table": "gemm", "dtype": dtype, "batch": 1, "m": 256, "n": 256, "k": 256}
        return {**product, "latency_us": seconds * 1e6}

    rates = _best_rates([row("float32", 1e-3), row("float16", 1.1e-3), row("bfloat16", 1e-4)])
    assert {kind.value for kind in rates} == {"fp32", "bf16"}


def test_the_cache_ends_where_the_rate_of_resident_buffers_steps_down() -> None:
    def row(size: float, rate: float) -> dict[str, object]:
        return {"table": "memory_bound", "bytes": size, "resident": 1, "latency_us": size / rate}

    steps = [row(2.0**p, 100.0 if p <= 20 else 20.0) for p in range(14, 28)]
    assert _cache_bytes(steps) == 2**20
    assert _cache_bytes([row(2.0**p, 20.0) for p in range(14, 28)]) == 0


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100_sxm"),
        ("NVIDIA H200", "h200_sxm"),
        ("NVIDIA A100-SXM4-40GB", "a100_sxm_40gb"),
        ("NVIDIA A100 80GB PCIe", "a100_pcie_80gb"),
        ("Tesla V100-SXM2-32GB", "v100_sxm_32gb"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Some Card 9000", "some_card_9000"),
    ],
)
def test_drivers_names_are_the_catalogues(device: str, name: str) -> None:
    assert _catalogue_name(device) == name


def test_a_name_becomes_one_word() -> None:
    assert slug("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz") == "intel_xeon_gold_6148_cpu_2_40ghz"


def test_nvidia_smi_is_read() -> None:
    read = torch_device._parse_nvidia("1980, 2619, 688.24, 700.00, 61\n")
    assert (read.clock_hz, read.memory_clock_hz, read.power_w) == (1.98e9, 2.619e9, 688.24)
    assert torch_device._parse_nvidia("").clock_hz == 0
    assert torch_device._parse_nvidia("[N/A], [N/A], [N/A], [N/A], 40").temperature_c == 40


def test_rocm_smi_is_read() -> None:
    text = '{"card0": {"sclk clock speed:": "(2100Mhz)", "Average Graphics Package Power (W)": "310.0"}}'
    read = torch_device._parse_amd(text)
    assert (read.clock_hz, read.power_w) == (2.1e9, 310.0)
    assert torch_device._parse_amd("not json").clock_hz == 0


def test_proc_and_sys_are_read(tmp_path: Path) -> None:
    text = "model name\t: A CPU\ncpu MHz\t\t: 2000.0\n\nmodel name\t: A CPU\ncpu MHz\t\t: 3000.0\n"
    assert (torch_device.cpu_name(text), torch_device._cpu_clock_hz(text)) == ("A CPU", 2.5e9)
    for level, size in enumerate(("48K", "2M", "480M")):
        (tmp_path / f"index{level}").mkdir()
        (tmp_path / f"index{level}" / "size").write_text(f"{size}\n")
    assert torch_device.last_cache_bytes(tmp_path) == 480 * 2**20
    assert torch_device.last_cache_bytes(tmp_path / "absent") == 0
    assert torch_device.CpuProbe().waited_s() >= 0
