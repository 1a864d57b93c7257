"""Spaces as files: what is written is what is searched, and what cannot be is one sentence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sartor.bounded import packaged_toml
from sartor.cost.chip.area import die_area
from sartor.cost.chip.operator_latency import operator_latencies
from sartor.cost.chip.ownership import power
from sartor.designs.question import AreaModel
from sartor.designs.space import _CHOICES, AXES, space_from, taken
from sartor.errors import InputError
from sartor.hardware.accelerator_catalog import load_accelerator
from sartor.hardware.catalog import ACCELERATORS
from sartor.model.lower import lower
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.model.zoo import load_model
from sartor.read.space_file import load_space, space_entry, space_model, space_names

LEAST = """
num_tensor_cores = [1, 2, 3]
num_vector_cores = { from = 1, to = 4, factor = 2 }
array_rows = { from = 96, to = 160, step = 32 }
array_cols = 128
global_buffer_mib = [8, 24]
"""


def space_of(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def test_the_published_space_has_its_published_counts() -> None:
    space = load_space("phaze")
    assert (space.num_points, space.num_kept) == (75_712, 29_360)
    assert space.area_model is AreaModel.PUBLISHED


@pytest.mark.parametrize("name", space_names())
def test_every_named_space_loads_and_says_what_it_is(name: str) -> None:
    entry = space_entry(name)
    assert entry["name"] == name
    assert entry["num_candidates"] == load_space(name).num_kept
    assert entry["title"]


def test_an_axis_is_a_number_a_list_or_a_range(tmp_path: Path) -> None:
    space = load_space(space_of(tmp_path, LEAST))
    (group,) = space.groups
    assert space.name == "mine"
    assert space.area_model is AreaModel.DIE
    assert space.num_kept == 3 * 3 * 3 * 1 * 2
    assert np.unique(group.num_vector_cores).tolist() == [1, 2, 4]
    assert np.unique(group.array_rows).tolist() == [96, 128, 160]
    assert (np.asarray(group.vector_lanes) == 128).all(), "lanes follow columns unless they are stated"


def test_lanes_memory_node_links_and_clock_are_axes(tmp_path: Path) -> None:
    more = """
vector_lanes = [64, 512]
memory = ["hbm2e", "hbm3"]
node_nm = [7, 5]
num_stacks = [4, 6]
clock_mhz = 1400
num_links = [6, 18]
link_gb_per_s = 50
area_limit_mm2 = 600
"""
    space = load_space(space_of(tmp_path, LEAST + more))
    assert len(space.groups) == 4
    assert space.num_kept == 54 * 2 * 4 * 2 * 2
    assert space.area_limit_mm2 == 600


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "num_tensor_cores=missing: the space must state it"),
        (LEAST + "tensor_cores = 4", "tensor_cores=4: is not an axis of a space; nearest: num_tensor_cores"),
        (
            LEAST.replace("num_tensor_cores", "num_tensor_core"),
            "num_tensor_core=[1, 2, 3]: is not an axis of a space; nearest: num_tensor_cores",
        ),
        (LEAST.replace("[1, 2, 3]", "[]"), "num_tensor_cores="),
        (LEAST.replace("[1, 2, 3]", "[0]"), "num_tensor_cores=0.0: must be above 0"),
        (LEAST.replace("[1, 2, 3]", "[-4]"), "num_tensor_cores=-4.0: must be above 0; nearest: 4"),
        (LEAST.replace("[1, 2, 3]", "[1.5]"), "num_tensor_cores=1.5: must be whole; nearest: 1 or 2"),
        (LEAST.replace("[1, 2, 3]", "true"), "num_tensor_cores=true: must be a number"),
        (
            LEAST.replace("[1, 2, 3]", "['8']"),
            'num_tensor_cores=["8"]: must be a number, a list of numbers, or a range',
        ),
        (LEAST.replace("from = 96, to = 160", "from = 160, to = 96"), "array_rows={"),
        (LEAST.replace("step = 32", "steps = 32"), "array_rows={"),
        (LEAST.replace("step = 32", "step = 0"), "its step must be a number above 0"),
        (LEAST.replace("factor = 2", "factor = 1"), "its factor must be above 1"),
        (LEAST.replace("128", "nan"), "array_cols=nan: must hold at least one number, all finite"),
        (LEAST + "memory = 'hbm9'", "memory=hbm9: must be one of hbm2"),
        (LEAST + "node_nm = 6", "node_nm=6: no area or energy is known for it"),
        (LEAST + "node_nm = 5.5", "node_nm=5.5: must be a whole number"),
        (LEAST + "area_model = 'half'", "area_model=half: must be published or die"),
        (LEAST + "vector_lanes = 'rows'", 'vector_lanes="rows" (a string): must be a number'),
        (LEAST + "clock_mhz = {from = 1, to = 1e9, step = 1e-3}", "clock_mhz={"),
        (LEAST + "hbm_gb = []", "hbm_gb="),
        (
            LEAST + "num_stacks = {from = 1, to = 5000, step = 1}\nnum_links = {from = 1, to = 5000, step = 1}",
            "at most",
        ),
        ("num_tensor_cores = ", "must be readable as TOML"),
        ("\x00", "must be readable as TOML"),
    ],
)
def test_a_space_that_cannot_be_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        load_space(space_of(tmp_path, text))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["publishd", "no/such.toml", "no.toml", "."])
def test_a_name_or_path_that_is_none_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(InputError, match="phaze"):
        load_space(name)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        load_space(path)


@pytest.mark.parametrize("key", ["control_share", "special_cycles", "load_bytes", "backward_passes", "io_node_nm"])
def test_numbers_of_a_core_may_be_lists_too(key: str) -> None:
    values = [5, 7] if key == "io_node_nm" else [1, 2]
    space = space_from({**packaged_toml("read", "spaces/modern.toml"), key: values})
    assert space.num_kept == 2 * load_space("modern").num_kept
    assert {getattr(group, key) for group in space.groups} == set(values)


def test_what_long_work_sustains_is_one_number_of_a_space() -> None:
    with pytest.raises(InputError, match="must be one number"):
        space_from({**packaged_toml("read", "spaces/modern.toml"), "sustained_share": [0.7, 0.8]})


def test_every_axis_of_a_space_may_stand_in_a_file() -> None:
    assert {*AXES, *_CHOICES} <= set(space_model().model_fields)


@pytest.mark.parametrize("name", ACCELERATORS.names())
def test_a_chip_of_the_catalogue_is_a_space_of_one_point_and_prices_as_it(name: str) -> None:
    chip = load_accelerator(name)
    if chip.dtype.bytes < 2:
        with pytest.raises(InputError, match="must have 16 bits, which attention always uses"):
            load_space(name)
        return
    space = load_space(name)
    assert space.num_kept == 1
    point = taken(space.groups[0], 0)
    facts = dict.fromkeys(("name", "title", "note", "confidence"), "") | {"sources": {}}
    assert replace(point, **facts) == replace(chip, **facts)
    job = Workload(shape=load_model("gpt2-xl"), phase=Phase.TRAIN, seq_len=1024, microbatch_size=2)
    graph = lower(job, ParallelDims())
    for one, other in zip(operator_latencies(graph, point), operator_latencies(graph, chip), strict=True):
        assert one == pytest.approx(other, rel=1e-12)
    assert die_area(point).total_mm2 == pytest.approx(die_area(chip).total_mm2, rel=1e-12)
    assert power(point).tdp_w == pytest.approx(power(chip).tdp_w, rel=1e-12)
