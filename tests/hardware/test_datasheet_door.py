"""What a datasheet may not say, the user's or ours: one sentence each, with field, value and what would do."""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.errors import InputError
from sartor.hardware import catalog
from sartor.hardware.accelerator_catalog import accelerator_from, load_accelerator
from sartor.hardware.catalog import GPUS, gpu_from, load_gpu
from sartor.hardware.cluster_catalog import cluster_from_table, load_cluster
from sartor.hardware.gpu import Gpu, _contradictions, check_gpu
from sartor.operators import DType

SPARSE = {
    "h100_sxm": "bf16",
    "h200_sxm": "fp8",
    "a100_sxm": "fp16",
    "l40s": "fp16",
    "b200_sxm": "nvfp4",
    "mi300x": "fp8",
}


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def changed(old: str, new: str, name: str = "h100_sxm") -> str:
    text = GPUS.text(name)
    assert old in text, old
    return text.replace(old, new, 1)


def test_a_users_own_file_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, changed("hbm_gib = 80", "hbm_gib = 96"))
    assert load_gpu(path).hbm_bytes == 96 * 2**30
    assert load_gpu(str(path)) == load_gpu(path)
    assert load_gpu(path).aliases == ()


def test_a_file_without_a_name_is_called_after_itself(tmp_path: Path) -> None:
    assert load_gpu(write(tmp_path, changed('name = "h100_sxm"\n', ""))).name == "mine"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("num_sms = 132", "num_sm = 132", "num_sm=132: is not a key of a datasheet; nearest: num_sms"),
        ("bf16 = 989.4", "bfloat16 = 989.4", ".bfloat16=989.4: is not a key of a datasheet; nearest: bf16"),
        ("usd_per_hour", "eur_per_hour", ".eur_per_hour=6.88: is not a key of a datasheet; nearest: usd_per_hour"),
        ("num_sms = 132\n", "", "num_sms=missing: every datasheet must state it"),
        ("num_sms = 132", "num_sms = 132.5", "num_sms=132.5: must be a whole number; nearest: 132"),
        ("num_sms = 132", "num_sms = true", "num_sms=true: must be a finite number"),
        ("num_sms = 132", "num_sms = -132", "num_sms=-132: must be a finite number not below 0"),
        ("num_sms = 132", "num_sms = 0", "num_sms=0: must be a finite number above 0"),
        ("num_sms = 132", "num_sms = 264", "must agree with 264 SMs x 1830 MHz"),
        ("num_sms = 132", 'num_sms = "132"', 'num_sms="132" (a string): must be a finite number'),
        ("hbm_gib = 80", "hbm_gib = nan", "hbm_gib=nan: must be a finite number"),
        ("hbm_gib = 80", "hbm_gib = inf", "hbm_gib=inf: must be a finite number"),
        ("hbm_gb_per_s = 3350", "hbm_gb_per_s = 0", "hbm_gb_per_s=0: must be a finite number above 0"),
        ("hbm_gb_per_s = 3350", "hbm_gb_per_s = 3.35", "hbm_gb_per_s=3.35: gives a ridge of"),
        ("l2_mib = 50", "l2_mib = 500000", "a cache must be smaller than the memory behind it"),
        ("max_clock_mhz = 1980", "max_clock_mhz = 1200", "max_clock_mhz=1200.0: the highest clock lies between"),
        ("boost_clock_mhz = 1830", "boost_clock_mhz = 1.83", "max_clock_mhz=1980.0: the highest clock lies"),
        ("fp8 = 1978.9", "fp8 = 3957.8", "1830 MHz x 8192 FLOP per cycle, a peak with sparsity; state the dense one"),
        ("bf16 = 989.4", "bf16 = 1979", "bf16=1979.0: is twice 132 SMs x 1830 MHz x 4096 FLOP per cycle"),
        ("bf16 = 989.4", "bf16 = 1200", "bf16=1200.0: must agree with 132 SMs"),
        ("vendor = \"NVIDIA\"", "vendor = 7", "vendor=7: must be printable text in quotes"),
        ("vendor = \"NVIDIA\"", 'vendor = "\\u001b[31m"', "must be printable text in quotes"),
        ("[price]\nusd_per_hour = 6.88", "[price]", "price.usd_per_hour=missing: "),
    ],
)  # fmt: skip
def test_a_wrong_datasheet_is_answered_with_a_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        load_gpu(write(tmp_path, changed(old, new)))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("num_sms = \n", "must be readable as TOML: Invalid value (at line 1, column 11)"),
        ("num_sms = 1\nnum_sms = 2\n", "must be readable as TOML: Cannot overwrite a value (at line 2"),
        ("<!DOCTYPE html><html></html>", "must be readable as TOML: Invalid statement (at line 1, column 1)"),
        ("a = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("", "vendor=missing: every datasheet must state it"),
        ("peak_dense_tflops = 3\n", "vendor=missing"),
        ('x = "' + "y" * 1_000_001 + '"', "must be at most 1000000 bytes"),
    ],
)
def test_a_broken_file_is_answered_with_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        load_gpu(write(tmp_path, text))
    assert sentence in str(refused.value)


def test_files_that_are_no_files_are_answered_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be a catalogue name or a TOML file that exists"):
        load_gpu(tmp_path / "absent.toml")
    with pytest.raises(InputError, match="must be a catalogue name or a TOML file that exists"):
        load_gpu(tmp_path)
    (tmp_path / "binary.toml").write_bytes(os.urandom(200) + b"\xff\xfe")
    with pytest.raises(InputError, match="must be text in UTF-8"):
        load_gpu(tmp_path / "binary.toml")


@pytest.mark.parametrize("name", SPARSE)
def test_a_peak_with_sparsity_is_called_by_its_name(name: str) -> None:
    gpu, dtype = load_gpu(name), DType(SPARSE[name])
    sparse = replace(gpu, peak_flops_per_s={**gpu.peak_flops_per_s, dtype: 2 * gpu.peak_flops_per_s[dtype]})
    with pytest.raises(InputError, match="a peak with sparsity; state the dense one"):
        check_gpu(sparse)


@given(name=st.sampled_from(GPUS.names()), factor=st.sampled_from((0.25, 0.5, 1.2, 1.5, 2.0, 4.0)), data=st.data())
def test_no_single_peak_can_be_changed_unnoticed(name: str, factor: float, data: st.DataObject) -> None:
    """Types that the generation's table lists; a change of the others is caught where it breaks a ratio."""
    from sartor.hardware.gpu import flops_per_sm_cycle

    gpu = load_gpu(name)
    listed = sorted(set(flops_per_sm_cycle(gpu)) & set(gpu.peak_flops_per_s), key=lambda d: d.value)
    if not listed:
        return
    dtype = data.draw(st.sampled_from(listed))
    wrong = replace(gpu, peak_flops_per_s={**gpu.peak_flops_per_s, dtype: factor * gpu.peak_flops_per_s[dtype]})
    assert list(_contradictions(wrong))


@pytest.mark.parametrize("field", ["num_sms", "hbm_bytes", "hbm_bytes_per_s", "l2_bytes", "boost_clock_hz", "tdp_w"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "80", True, None])
def test_construction_refuses_what_no_device_can_be(field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^{field}="):
        replace(load_gpu("h100"), **{field: value})


def test_construction_allows_devices_that_do_not_exist() -> None:
    """Laws of the cost model are tried on hardware that is faster all over; only the catalogue's door checks ratios."""
    gpu = load_gpu("h100")
    faster = replace(gpu, peak_flops_per_s={d: 4 * p for d, p in gpu.peak_flops_per_s.items()})
    assert isinstance(faster, Gpu)
    with pytest.raises(InputError):
        check_gpu(faster)
    with pytest.raises(InputError, match="needs the dense peak of at least one data type"):
        replace(gpu, peak_flops_per_s={})


def test_a_generation_of_ones_own_is_held_to_ratios_only() -> None:
    mine = replace(load_gpu("h100"), generation="mine", num_sms=7)
    assert list(_contradictions(mine)) == []
    slow8 = {**mine.peak_flops_per_s, DType.FP8: 4 * mine.peak_flops_per_s[DType.BF16]}
    with pytest.raises(InputError, match="four times it is a peak with sparsity"):
        check_gpu(replace(mine, peak_flops_per_s=slow8))
    narrow = {**mine.peak_flops_per_s, DType.FP16: mine.peak_flops_per_s[DType.TF32] / 2}
    with pytest.raises(InputError, match="a narrower type cannot be slower than tf32"):
        check_gpu(replace(mine, peak_flops_per_s=narrow))


@pytest.mark.parametrize(
    "path", sorted(Path(catalog.__file__).parent.glob("*/*.toml")), ids=lambda path: str(path.stem)
)
def test_every_file_of_the_package_passes_the_door_of_a_users_own(path: Path) -> None:
    """Answers trust the package's own files, so that no one waits for pydantic."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    if path.parent.name == "clusters":
        assert cluster_from_table(table, path.stem).gpu == load_cluster(path.stem).gpu
    elif path.parent.name == "accelerators":
        assert accelerator_from(table, path.stem) == load_accelerator(path.stem)
    else:
        assert replace(gpu_from(table, path.stem), aliases=load_gpu(path.stem).aliases) == load_gpu(path.stem)
