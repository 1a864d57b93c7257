"""The accelerator noun, its template constructor and its catalogue; files that cannot be used."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelerators import TPU
from sartor.errors import InputError
from sartor.hardware.accelerator import NODES_NM, Accelerator, Memory
from sartor.hardware.accelerator_catalog import accelerator_entry, accelerator_from, load_accelerator
from sartor.hardware.catalog import ACCELERATORS

PLAIN = {
    "num_tensor_cores": 8,
    "array_rows": 128,
    "array_cols": 128,
    "num_vector_cores": 2,
    "vector_lanes": 128,
    "global_buffer_mib": 128,
    "clock_mhz": 1050,
    "memory": "hbm2",
    "num_stacks": 4,
    "node_nm": 22,
}


# ------------------------------------------------------------------------------------------------------------ template


def test_the_published_template_derives_its_buffers() -> None:
    """max(1 KiB, 16 w d) and max(1 KiB, 16 w); rows are the depth, columns the width (reference/phaze.md sec. 3)."""
    a = Accelerator.from_template(num_tensor_cores=1, num_vector_cores=1, width=256, depth=8, global_buffer_mib=2)
    assert (a.array_rows, a.array_cols, a.vector_lanes) == (8, 256, 256)
    assert (a.tensor_core_sram_bytes, a.vector_core_sram_bytes) == (16 * 256 * 8, 16 * 256)
    small = Accelerator.from_template(num_tensor_cores=1, num_vector_cores=1, width=2, depth=2, global_buffer_mib=2)
    assert (small.tensor_core_sram_bytes, small.vector_core_sram_bytes) == (1024, 1024)


def test_lanes_are_free_of_the_arrays_width() -> None:
    a = Accelerator.from_template(
        num_tensor_cores=1, num_vector_cores=1, width=128, depth=128, vector_lanes=2048, global_buffer_mib=2
    )
    assert (a.array_cols, a.vector_lanes, a.vector_core_sram_bytes) == (128, 2048, 32768)


def test_rates_follow_the_architecture() -> None:
    assert TPU.peak_flops_per_s == 2 * 8 * 128 * 128 * 1.05e9
    assert TPU.hbm_bytes_per_s == 4 * 307.2e9
    assert TPU.hbm_bytes == 32 * 2**30
    assert TPU.tensor_port_bytes_per_s == 256 * 2 * 1.05e9
    assert TPU.global_buffer_bytes_per_s == 128 * 128 * 1.05e9
    assert replace(TPU, global_buffer_bytes=2**16).global_buffer_bytes_per_s == 128 * 1.05e9


def test_fields_may_be_arrays() -> None:
    a = replace(TPU, num_tensor_cores=np.asarray([[1], [8]]), num_stacks=np.asarray([2, 4, 8]))
    assert a.shape == (2, 3)
    assert TPU.shape == ()
    assert np.shape(a.hbm_bytes_per_s) == (3,)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("num_tensor_cores", 0, "num_tensor_cores=0: must be finite and above 0"),
        ("array_rows", -4, "must be finite and above 0"),
        ("array_cols", 12.5, "must be whole; nearest: 12 or 13"),
        ("clock_hz", float("nan"), "must be finite"),
        ("num_stacks", np.asarray([4, 0]), "must be finite and above 0"),
        ("link_latency_s", -1.0, "not below 0"),
        ("global_buffer_bytes", "many", "must be a number"),
        ("node_nm", 6, "nearest: 7 or 5"),
        ("node_nm", "seven", "no area or energy is known"),
    ],
)
def test_sizes_that_cannot_be_are_named(field: str, value: object, sentence: str) -> None:
    with pytest.raises(InputError, match=field) as error:
        replace(TPU, **{field: value})  # type: ignore[arg-type]
    assert sentence in str(error.value)


# ----------------------------------------------------------------------------------------------------------- catalogue


@pytest.mark.parametrize("name", ACCELERATORS.names())
def test_every_entry_loads_and_says_where_it_is_from(name: str) -> None:
    entry = accelerator_entry(name)
    assert entry["sources"]["all"]
    assert entry["confidence"] in ("high", "medium", "low")
    assert entry["node_nm"] in NODES_NM
    assert entry["title"]
    json.dumps(entry, allow_nan=False)
    assert all("20" in text or "assumption" in text for text in entry["sources"].values()), "a source has a date"


@pytest.mark.parametrize(
    ("name", "tera", "giga"),
    [
        ("tpu_v4_like", 275, 1228.8),
        ("tpu_v4_lanes", 275, 1228.8),
        ("tpu_v5e_like", 197, 819),
        ("a100_like", 312, 2039),
        ("h100_like", 989, 3352),
        ("fast_large_like", 131, 448),
        ("edge_tpu_like", 4, 17.1),
    ],
)
def test_fits_have_their_chips_peak_and_bandwidth(name: str, tera: float, giga: float) -> None:
    a = load_accelerator(name)
    assert a.peak_flops_per_s == pytest.approx(tera * 1e12, rel=0.02)
    assert a.hbm_bytes_per_s == pytest.approx(giga * 1e9, rel=1e-3)


def test_the_tpu_like_entry_is_the_published_point() -> None:
    a = load_accelerator("tpu_v4_like")
    fields = (
        "num_tensor_cores num_vector_cores array_rows array_cols vector_lanes global_buffer_bytes clock_hz "
        "tensor_core_sram_bytes vector_core_sram_bytes"
    )
    assert all(getattr(a, name) == getattr(TPU, name) for name in fields.split())


def test_spelling_is_forgiven_and_unknown_names_get_the_nearest() -> None:
    assert load_accelerator("A100-like") == load_accelerator("a100 LIKE") == load_accelerator("a100_like")
    with pytest.raises(InputError, match="a100_like"):
        load_accelerator("a100lik")


# --------------------------------------------------------------------------------------------------------- user files


def test_a_users_file_goes_through_the_same_door(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in PLAIN.items()))
    a = load_accelerator(file)
    assert a.name == "mine"
    assert a.tensor_core_sram_bytes == 16 * 128 * 128
    assert a.memory is Memory.HBM2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_tensor_core": 8}, "num_tensor_core=8: is not a key of an accelerator; nearest: num_tensor_cores"),
        ({"memory": "hbm9"}, "memory=hbm9: must be one of hbm2"),
        ({"memory": ["hbm2"]}, "must be one of"),
        ({"dtype": "bf17"}, "nearest: bf16"),
        ({"dataflow": "row_stationary"}, "dataflow=row_stationary: must be one of weight_stationary"),
        ({"array_rows": True}, "array_rows=true: must be a number"),
        ({"array_rows": "128"}, "must be a number"),
        ({"array_rows": 0}, "array_rows=0: must be above 0; nearest: 1"),
        ({"num_tensor_cores": -6}, "num_tensor_cores=-6: must be above 0; nearest: 6"),
        ({"array_rows": float("nan")}, "array_rows=nan: must be a finite number"),
        ({"clock_mhz": 1.5e9}, "clock_mhz=1500000000.0: must be at most 1.126e+09; nearest: 1500"),
        ({"clock_mhz": float("inf")}, "clock_mhz=inf: must be at most 1.126e+09"),
        ({"clock_mhz": 1e-300}, "clock_mhz=1e-300: must be at least 1e-06; nearest: 1e-06"),
        ({"global_buffer_mib": 0}, "global_buffer_mib=0: must be above 0"),
        ({"link_gb_per_s": 0}, "link_gb_per_s=0: must be above 0"),
        ({"stack_gb_per_s": -5}, "stack_gb_per_s=-5: must not be below 0; nearest: 5"),
        ({"link_latency_us": -1}, "link_latency_us=-1: must not be below 0; nearest: 1"),
        ({"array_rows": 1e30}, "must be at most"),
        ({"num_tensor_cores": 2.5}, "must be a whole number of units"),
        ({"node_nm": 10}, "nearest: 7 or 16"),
        ({"title": 7}, "title=7: must be a text"),
        ({"sources": "here"}, "sources=here: must be a table"),
        ({"sources": {"clock": "x"}}, "sources.clock=x: is not a key of an accelerator; nearest: clock_mhz"),
    ],
)
def test_what_a_file_cannot_say_is_named(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        accelerator_from({**PLAIN, **change})
    assert sentence in str(error.value)


@pytest.mark.parametrize("key", ["num_tensor_cores", "memory", "node_nm", "clock_mhz"])
def test_what_a_file_must_state_is_named(key: str) -> None:
    with pytest.raises(InputError, match=f"{key}=missing"):
        accelerator_from({k: v for k, v in PLAIN.items() if k != key})


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a = [", b"a = " + b"[" * 5000, b"#" * 1_000_001])
def test_files_that_are_no_toml_get_a_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"broken\.toml"):
        load_accelerator(file)


def test_a_missing_file_and_a_folder_get_a_sentence(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(InputError, match="exists"):
            load_accelerator(path)


@given(st.dictionaries(st.sampled_from([*PLAIN, "dtype", "x"]), st.none() | st.integers() | st.floats() | st.text()))
def test_any_value_is_taken_or_refused_with_a_sentence(change: dict[str, object]) -> None:
    """An accelerator, or nothing but ``InputError``."""
    made: object = None
    with suppress(InputError):
        made = accelerator_from({**PLAIN, **change})
    assert made is None or isinstance(made, Accelerator)
