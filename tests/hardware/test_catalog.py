"""The device catalogue: every datasheet loads, is sourced, agrees with the reference and with itself."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sartor.errors import InputError
from sartor.hardware import catalog
from sartor.hardware.catalog import GPUS, canonical, gpu_entry, load_gpu
from sartor.hardware.gpu import _contradictions, _flops_per_cycle, flops_per_sm_cycle
from sartor.operators import DType

NAMES = GPUS.names()

ASKED_FOR = [
    "v100_sxm",
    "v100_sxm_32gb",
    "v100_pcie_32gb",
    "t4",
    "p4",
    "p100_pcie_16gb",
    "a100_sxm",
    "a100_sxm_40gb",
    "a100_pcie_40gb",
    "a100_pcie_80gb",
    "a10",
    "a30",
    "a40",
    "l4",
    "l40s",
    "rtx_3090",
    "rtx_4090",
    "rtx_5090",
    "rtx_6000_ada",
    "rtx_pro_6000_server",
    "h100_sxm",
    "h100_pcie",
    "h100_nvl",
    "h200_sxm",
    "gh200",
    "h20",
    "b200_sxm",
    "gb200",
    "b300_sxm",
    "gb300",
    "mi100",
    "mi210",
    "mi250",
    "mi250x",
    "mi300x",
    "mi300a",
    "mi308x",
    "mi325x",
    "mi350x",
    "mi355x",
    "tpu_v4",
    "tpu_v5e",
    "tpu_v5p",
    "tpu_v6e",
    "trainium1",
    "trainium2",
    "inferentia2",
    "gaudi2",
    "gaudi3",
    "arc_pro_b60",
]


def test_the_catalogue_reaches_from_pascal_to_blackwell_ultra() -> None:
    assert set(ASKED_FOR) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_datasheet_loads_and_does_not_contradict_itself(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.name == name
    assert list(_contradictions(gpu)) == []
    assert gpu.title
    assert gpu.vendor in {"NVIDIA", "AMD", "Google", "AWS", "Intel"}
    assert gpu.confidence in {"high", "medium", "low"}
    assert gpu.confidence == "high" or gpu.note, "what is not sure must be said"


@pytest.mark.parametrize("name", NAMES)
def test_every_field_has_a_source_with_a_date(name: str) -> None:
    gpu = load_gpu(name)
    assert "all" in gpu.sources
    assert all(re.search(r"\b20\d\d\b", document) for document in gpu.sources.values()), gpu.sources
    assert re.fullmatch(r"20\d\d-\d\d", gpu.released)


@pytest.mark.parametrize("name", NAMES)
def test_a_price_has_a_source_and_a_date_or_is_left_out(name: str) -> None:
    gpu = load_gpu(name)
    assert (gpu.price_usd_per_hour is None) == (not gpu.price_source) == (not gpu.price_date)
    if gpu.price_usd_per_hour is not None:
        assert 0.1 < gpu.price_usd_per_hour < 20
        assert re.fullmatch(r"20\d\d-\d\d", gpu.price_date)


@pytest.mark.parametrize("name", NAMES)
def test_peaks_are_dense(name: str) -> None:
    """fp8 is once or twice bf16, and every type in the generation's table is cores x clock x FLOPs per cycle."""
    gpu = load_gpu(name)
    peaks = gpu.peak_flops_per_s
    if DType.FP8 in peaks:
        assert round(peaks[DType.FP8] / peaks[DType.BF16], 1) in (1.0, 1.9, 2.0)
        assert peaks[DType.FP8_BLOCK] == peaks[DType.FP8]
    assert 10 < gpu.ridge_flops_per_byte(gpu.default_dtype) < 800


def test_nearly_all_devices_are_checked_against_their_clock() -> None:
    """Where units or clock are not published there is nothing to check; those entries say so."""
    unchecked = {name for name in NAMES if not flops_per_sm_cycle(load_gpu(name))}
    assert unchecked == {"tpu_v6e", "tpu_v7", "trainium1", "trainium2", "inferentia2"}
    assert all(load_gpu(name).confidence != "high" for name in unchecked)


def test_every_stated_peak_of_a_gpu_is_in_the_table_of_its_generation() -> None:
    beyond = {DType.FP8_BLOCK, DType.FP64, DType.FP32}
    for name in NAMES:
        gpu = load_gpu(name)
        table = flops_per_sm_cycle(gpu)
        if table and not gpu.generation.startswith("tpu"):
            assert set(gpu.peak_flops_per_s) - beyond <= set(table), name
    assert {key.split("/")[0] for key in _flops_per_cycle()} <= {load_gpu(name).generation for name in NAMES}


# ---------------------------------------------------------------------------------------- agreement with the reference

_COLUMNS = {
    "fp16_tflops": lambda g: g.peak_flops_per_s.get(DType.FP16, math.nan) / 1e12,
    "bf16_tflops": lambda g: g.peak_flops_per_s.get(DType.BF16, math.nan) / 1e12,
    "fp8_tflops": lambda g: g.peak_flops_per_s.get(DType.FP8, math.nan) / 1e12,
    "tf32_tflops": lambda g: g.peak_flops_per_s.get(DType.TF32, math.nan) / 1e12,
    "fp32_tflops": lambda g: g.peak_flops_per_s.get(DType.FP32, math.nan) / 1e12,
    "sm_count": lambda g: g.num_sms,
    "mem_gbps": lambda g: g.hbm_bytes_per_s / 1e9,
    "l2_mb": lambda g: g.l2_bytes / 2**20,
    "mem_gb": lambda g: g.hbm_bytes / 2**30,
    "tdp_w": lambda g: g.tdp_w,
}
_OF_A_DIE = {
    "boost_mhz": lambda g: g.boost_clock_hz / 1e6,
    "max_mhz": lambda g: (g.max_clock_hz or g.boost_clock_hz) / 1e6,
    "link_gbps_unidir": lambda g: g.link_bytes_per_s / 1e9,
}


def test_the_catalogue_agrees_with_the_reference_collection(shared_dir: Path) -> None:
    """To 0.5% in every number it states. It lists the MI250 as a card; ours is one of its two dies."""
    with (shared_dir / "data/measured/gpus.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        gpu = load_gpu(row["gpu"])
        for columns, dies in ((_COLUMNS, gpu.dies_per_card), (_OF_A_DIE, 1)):
            for column, ours in columns.items():
                if row[column]:
                    assert dies * ours(gpu) == pytest.approx(float(row[column]), rel=0.005), (row["gpu"], column)
        assert gpu.compute_capability == row["compute_cap"]


# Digest section 2.4: peak 16-bit TFLOP/s, memory TB/s. It rounds B200 and B300 to 8.0 TB/s (the HGX boards have 7.7).
RIDGES = {
    "v100_sxm": (125, 0.90),
    "a100_sxm_40gb": (312, 1.555),
    "a100_sxm": (312, 2.0),
    "h100_sxm": (989, 3.35),
    "h200_sxm": (989, 4.8),
    "gh200": (989, 4.8),
    "b200_sxm": (2250, 8.0),
    "b300_sxm": (2250, 8.0),
    "gb200": (2500, 8.0),
    "mi250x": (191.5, 1.64),
    "mi300x": (1300, 5.3),
    "mi325x": (1300, 6.0),
    "gaudi2": (432, 2.46),
    "gaudi3": (1677, 3.7),
}


@pytest.mark.parametrize("name", RIDGES)
def test_ridge_points_are_those_of_the_digest(name: str) -> None:
    tflops, tb_per_s = RIDGES[name]
    gpu = load_gpu(name)
    assert gpu.peak(gpu.default_dtype) / 1e12 == pytest.approx(tflops, rel=0.01)
    assert gpu.hbm_bytes_per_s / 1e12 == pytest.approx(tb_per_s, rel=0.04)
    assert gpu.ridge_flops_per_byte(gpu.default_dtype) == pytest.approx(tflops / tb_per_s, rel=0.05)


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("h100", "h100_sxm"),
        ("H100-SXM", "h100_sxm"),
        ("h100 sxm", "h100_sxm"),
        ("NVIDIA H100 SXM5", "h100_sxm"),
        ("a100", "a100_sxm"),
        ("A100-SXM4-40GB", "a100_sxm_40gb"),
        ("v100", "v100_sxm"),
        ("b200", "b200_sxm"),
        ("B300", "b300_sxm"),
        ("GB-200", "gb200"),
        ("RTX 4090", "rtx_4090"),
        ("GeForce RTX 4090", "rtx_4090"),
        ("Tesla T4", "t4"),
        ("AMD Instinct MI300X", "mi300x"),
        ("TPU v5e", "tpu_v5e"),
        ("Gaudi 3", "gaudi3"),
        ("trn2", "trainium2"),
    ],
)
def test_spelling_is_forgiven(said: str, meant: str) -> None:
    assert load_gpu(said).name == meant


def test_every_alias_leads_to_a_datasheet() -> None:
    for alias, name in GPUS.aliases().items():
        assert name in NAMES, alias
        assert canonical(alias) not in {canonical(each) for each in NAMES}, alias
        assert alias in load_gpu(alias).aliases
    keys = [canonical(each) for each in (*NAMES, *GPUS.aliases())]
    assert len(keys) == len(set(keys)), "two names read the same"


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"^gpu=h1000: not in the catalogue .*nearest: .*h100_sxm"):
        load_gpu("h1000")
    with pytest.raises(InputError, match=r"nearest: .*mi300x"):
        load_gpu("mi300")
    for hostile in ("", "   ", "aliases", "\x1b[31m", "x" * 10_000, "nvidia", "-"):
        with pytest.raises(InputError, match="not in the catalogue"):
            load_gpu(hostile)


def test_a_type_the_device_has_not_is_answered_with_those_it_has() -> None:
    with pytest.raises(
        InputError, match=r"^dtype=bf16: v100_sxm has no matrix units for it; nearest: fp16, fp32, fp64$"
    ):
        load_gpu("v100").peak(DType.BF16)
    assert load_gpu("v100").default_dtype is DType.FP16
    assert load_gpu("p4").default_dtype is DType.FP32
    assert load_gpu("h100").default_dtype is DType.BF16


def test_a_die_of_a_card_says_so() -> None:
    for name in ("mi250", "mi250x"):
        gpu = load_gpu(name)
        assert gpu.dies_per_card == 2
        assert "one of its two dies" in gpu.title
        assert "half" in gpu.note


# ------------------------------------------------------------------------------------------------- what is shown, speed


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_plain_json_in_si_units(name: str) -> None:
    entry = gpu_entry(name)
    assert json.loads(json.dumps(entry, allow_nan=False)) == {**entry}
    assert entry["hbm_bytes"] > 1e9
    assert not [key for key in entry if key.endswith(("_gib", "_mhz", "_tflops"))]
    assert entry["sources"]["all"]
    assert GPUS.text(name).startswith(f'name = "{name}"')


def test_one_device_costs_one_parsed_file(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = catalog.gpu_from
    monkeypatch.setattr(
        catalog, "gpu_from", lambda table, name, **how: read.append(name) or original(table, name, **how)
    )
    catalog._of_the_catalogue.cache_clear()
    load_gpu("h100")
    assert read == ["h100_sxm"]


def test_the_catalogue_needs_nothing_heavy() -> None:
    heavy = "'pydantic', 'rich', 'altair', 'scipy'"
    code = f"import sys, sartor.hardware.catalog; print([m for m in ({heavy}) if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_datasheets_are_named_by_their_devices() -> None:
    assert {path.stem for path in GPUS.folder.glob("*.toml")} == {*NAMES}


def test_a_device_of_the_catalogue_is_read_once() -> None:
    assert load_gpu("h100") is load_gpu("h100")
