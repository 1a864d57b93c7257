"""Every calibration file says where it comes from and how far off it is, and the docs page says the same."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from sartor.cost.correction.calibration import load_calibration
from sartor.cost.correction.coefficients import calibration_files, table_of
from sartor.cost.correction.network import find_residual, residual_records
from sartor.hardware.catalog import GPUS, load_gpu
from sartor.operators import DType

FILES = calibration_files()


@pytest.mark.parametrize("name", FILES)
def test_a_file_names_a_device_of_the_catalogue_and_a_type(name: str) -> None:
    gpu, _, dtype = name.partition(".")
    assert gpu in GPUS.names()
    assert not dtype or DType(dtype) in {*DType}


@pytest.mark.parametrize("name", FILES)
def test_every_section_has_a_source_a_date_its_rows_and_its_held_out_error(name: str) -> None:
    table = FILES[name]
    sections = [key for key in table if key != "provenance"]
    assert sections
    for section in sections:
        record = table["provenance"][section]
        for each in [record] if "source" in record else record.values():
            assert each["source"]
            assert each["date"] >= "2026"
            assert each["rows"] >= each["held_out"]["rows"] > 10, "all of them where each is held out once"
            assert 0 < each["held_out"]["median"] <= each["held_out"]["p90"]


@pytest.mark.parametrize("name", [name for name in FILES if "gemm" in FILES[name]])
def test_shares_are_physical(name: str) -> None:
    table = FILES[name]["gemm"]
    assert all(0 < share <= 1.1 for _, _, share in table["tiles"])
    assert 0 < table["hbm_share"] <= 1
    assert all(table[key] >= 0 for key in table if key.endswith("_s"))
    for key in ("input_penalty", "output_penalty"):
        assert table[key] == sorted(table[key], reverse=True)  # better alignment never costs more


def test_every_kin_is_calibrated_itself() -> None:
    owners = {name.partition(".")[0] for name in FILES}
    for name in GPUS.names():
        relative = load_calibration(load_gpu(name)).relative
        assert not relative or relative in owners


def test_the_docs_pages_are_made_from_the_files(repo_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(repo_dir / "tools")
    tool = importlib.import_module("calibration_docs")
    assert (repo_dir / "docs" / "calibrations.md").read_text(encoding="utf-8") == tool.page()
    assert (repo_dir / "lab" / "tables" / "calibrations.md").read_text(encoding="utf-8") == tool.table()


def test_what_is_lent_is_as_uncertain_as_held_out_devices_were() -> None:
    borrowed, kin = table_of("lent.toml"), table_of("kin.toml")
    assert borrowed is not None
    assert kin is not None
    far = load_calibration(load_gpu("l40s"))
    rtx = load_calibration(load_gpu("rtx_pro_6000_server"))
    assert far.grouped.log_sigma == pytest.approx(borrowed["other"]["grouped"]["times"] * rtx.grouped.log_sigma)
    lenders = [load_calibration(load_gpu(name)).attention.log_sigma for name in kin["attention"]["lenders"]]
    wider = far.attention.log_sigma / borrowed["other"]["attention"]["times"]
    assert min(lenders) <= wider <= max(lenders)
    assert far.memory_bound.log_sigma >= borrowed["other"]["memory_bound"]["least"]
    lender, near = (load_calibration(load_gpu(name)) for name in ("h200_sxm", "gh200"))
    assert near.attention.decode_log_sigma == pytest.approx(1.3 * lender.attention.decode_log_sigma)
    assert near.gemm[DType.BF16].log_sigma == pytest.approx(1.3 * lender.gemm[DType.BF16].log_sigma)
    assert all(row[-1] >= borrowed["die"]["collective"]["least"] for row in near.collective.kinds)
    block = near.gemm[DType.FP8_BLOCK]
    assert block.sub_block_log_sigma >= kin["floors"]["die"]["gemm.fp8_block.sub_block"]


def test_a_network_lent_on_its_die_has_the_interval_that_held_out_devices_needed() -> None:
    borrowed = table_of("lent.toml") or {}
    record = residual_records()["h200_sxm.bf16"]
    found = find_residual(load_calibration(load_gpu("h200_sxm")).gemm[DType.BF16])
    assert found is not None
    assert found.kin_log_sigma == pytest.approx(record["kin_log_sigma"] * borrowed["die"]["residual.bf16"]["times"])


def test_held_out_devices_find_three_to_four_fifths_inside_what_they_are_lent() -> None:
    borrowed = table_of("lent.toml") or {}
    for near, entries in borrowed.items():
        for section, entry in entries.items():
            if section == "residual.grouped" or entry["devices"] < 3:  # docs/concepts/intervals.md says why
                continue
            assert 0.75 <= entry.get("inside", 0.8) <= 0.85, (near, section)


@pytest.mark.parametrize("name", ["mi300x.fp8_block", "mi308x.fp8", "mi325x.fp8_block", "mi355x.bf16", "mi355x.mxfp4"])
def test_a_fit_of_tuning_runs_says_that_it_is_of_the_best_kernel_and_what_was_left_out(name: str) -> None:
    record = calibration_files()[name]["provenance"]["gemm"]
    assert "Best kernel of a tuning run" in record["note"]
    assert "with a time copied from another shape" in record["note"]
    assert record["held_out"]["rows"] == record["rows"]
    assert record["held_out"]["mape"] < 0.1
    gpu, dtype = name.split(".")
    assert f"gemm.{dtype}" in load_calibration(load_gpu(gpu)).calibrated
