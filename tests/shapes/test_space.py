"""The grid and the points of it that are the baseline's size, against their definitions one by one."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from sartor.errors import InputError
from sartor.hardware.accelerator_catalog import load_device
from sartor.model.counts import count_params
from sartor.model.editing import edit
from sartor.model.lower import feasible
from sartor.model.workload import AttentionKernel, ParallelDims, Workload
from sartor.model.zoo import load_model
from sartor.shapes.near import FLASH_HEAD_DIMS, build_space, grain_of
from sartor.shapes.quality import QualityGuard, allowed
from sartor.shapes.space import ShapeAxis, Space, is_coupled, same_size


def workload(name: str = "gpt3-2.7b", **fields: object) -> Workload:
    return replace(Workload(shape=load_model(name), seq_len=2048, microbatch_size=4), **fields)  # type: ignore[arg-type]


def space_of(name: str = "gpt3-2.7b", dims: ParallelDims | None = None, **options: object) -> Space:
    return build_space(workload(name), dims or ParallelDims(), **options)  # type: ignore[arg-type]


def tiny_space(name: str = "gpt3-2.7b") -> Space:
    """Two or three values on every axis: 2 x 3 x 5 x 2 x 1 x 9 combinations."""
    heads = [(16, 16, 160), (20, 20, 128), (21, 21, 128), (32, 32, 80), (40, 40, 64)]
    columns = np.asarray(heads).T
    return Space(
        shape=load_model(name),
        axes=(
            ShapeAxis(values={"num_layers": np.asarray([28, 32])}),
            ShapeAxis(values={"hidden_size": np.asarray([2496, 2560, 2688])}),
            ShapeAxis(values={"num_heads": columns[0], "num_kv_heads": columns[1], "head_dim": columns[2]}),
            ShapeAxis(values={"vocab_size": np.asarray([50257, 50304])}),
            ShapeAxis(values={}),
            ShapeAxis(
                values={"ffn_hidden_size": np.asarray([9088, 9472, 10112, 10176, 10240, 10304, 10368, 11776, 12288])}
            ),
        ),
    )


def combinations(space: Space) -> list[dict[str, int]]:
    rows = [
        [{name: int(values[i]) for name, values in axis.values.items()} for i in range(axis.size)]
        for axis in space.axes
    ]
    return [{k: v for part in parts for k, v in part.items()} for parts in itertools.product(*rows)]


def by_hand(space: Space, tolerance: float, guard: QualityGuard) -> list[dict[str, int]]:
    """Same-size points, each combination asked alone."""
    total, own = count_params(space.shape).total, space.baseline
    out = []
    for fields in combinations(space):
        shape = edit(space.shape, **fields)
        close = abs(count_params(shape).total - total) <= tolerance * total
        coupled = "head_dim" not in own or not is_coupled(own) or is_coupled(fields)
        if close and coupled and feasible(shape, ParallelDims()) and allowed(guard, fields, own):
            out.append(fields)
    return out


@pytest.mark.parametrize("tolerance", [0.0, 0.003, 0.01, 0.05])
def test_same_size_points_are_those_found_one_by_one(tolerance: float) -> None:
    space, guard = tiny_space(), QualityGuard()
    points = same_size(space, ParallelDims(), tolerance, guard)
    fields = points.fields()
    found = [{name: int(values[i]) for name, values in fields.items()} for i in range(points.size)]
    assert found == by_hand(space, tolerance, guard)


def test_every_point_counts_the_parameters_its_shape_has() -> None:
    points = same_size(space_of(), ParallelDims())
    fields = points.fields()
    for i in np.random.default_rng(0).integers(0, points.size, 20):
        shape = edit(points.space.shape, **{name: int(values[i]) for name, values in fields.items()})
        assert count_params(shape).total == points.num_params[i]


@pytest.mark.parametrize(
    "name", ["gpt3-2.7b", "llama-3.1-8b", "deepseek-v3", "mixtral-8x7b", "gemma-2-9b", "bert-base"]
)
def test_the_baseline_is_always_a_point(name: str) -> None:
    space = space_of(name)
    points = same_size(space, ParallelDims(), 0.0)
    fields, own = points.fields(), space.baseline
    assert np.any(np.all([fields[n] == own[n] for n in own], axis=0))


def test_frozen_fields_keep_their_value() -> None:
    space = space_of(freeze=("num_layers", "vocab_size", "num_heads"))
    for field in ("num_layers", "vocab_size", "num_heads"):
        assert set(space.grid()[field].ravel().tolist()) == {space.baseline[field]}


def test_a_field_that_is_none_cannot_be_frozen() -> None:
    with pytest.raises(InputError, match=r"num_headz.*num_heads"):
        space_of(freeze=("num_headz",))


def test_a_tolerance_must_be_a_share() -> None:
    for tolerance in (-0.1, float("nan"), 7.0):
        with pytest.raises(InputError, match="params_tolerance"):
            same_size(tiny_space(), ParallelDims(), tolerance)


def test_head_dims_are_ones_that_flash_attention_is_compiled_for() -> None:
    space = space_of()
    assert set(space.grid()["head_dim"].ravel().tolist()) <= {80, *FLASH_HEAD_DIMS}
    unfused = build_space(workload(attention_kernel=AttentionKernel.UNFUSED), ParallelDims())
    assert 160 in unfused.grid()["head_dim"]


@pytest.mark.parametrize(
    ("names", "grain"),
    [
        (["h100"], 64),
        (["tpu_v4"], 64),
        (["a100_like"], 64),  # arrays of 16 x 16
        (["tpu_v4_like"], 128),
        (["tpu_v4_like", "h100"], 128),
        (["spotlight_like"], 256),
        (["spotlight_like", "h100_like", "h100"], 256),
        (["eyeriss_like"], 84),  # 12 x 14
        (["eyeriss_like", "h100"], 84),  # 1344 would leave nothing to choose from
    ],
)
def test_widths_are_multiples_of_a_chips_array(names: list[str], grain: int) -> None:
    assert grain_of([load_device(name) for name in names]) == grain
    grid = space_of(grain=grain).grid()
    for field, own in (("hidden_size", 2560), ("ffn_hidden_size", 10240), ("vocab_size", 50257)):
        assert all(value % grain == 0 or value == own for value in grid[field].ravel().tolist())


def test_the_vocabulary_is_padded_upwards_only() -> None:
    assert space_of().grid()["vocab_size"].ravel().tolist() == [50257, 50304, 50432]


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_every_point_splits_over_the_ranks_asked_for(tp: int) -> None:
    dims = ParallelDims(tp=tp)
    space = build_space(workload("llama-3.1-70b"), dims)
    points = same_size(space, dims)
    fields = points.fields()
    assert points.size > 10
    assert np.all(fields["num_heads"] % tp == 0)
    assert np.all(fields["ffn_hidden_size"] % tp == 0)
    assert np.all((fields["num_kv_heads"] % tp == 0) | (tp % fields["num_kv_heads"] == 0))


def test_heads_go_on_splitting_over_two_and_four_ranks() -> None:
    heads = space_of("llama-3.1-8b").grid()
    assert np.all(heads["num_heads"] % 4 == 0)
    loose = space_of("llama-3.1-8b", keep_tp=())
    assert np.any(loose.grid()["num_heads"] % 4 != 0)


def test_a_multi_head_model_stays_one() -> None:
    heads = space_of("pythia-2.8b").grid()
    assert np.all(heads["num_heads"] == heads["num_kv_heads"])


@pytest.mark.parametrize(
    ("name", "field", "reason"),
    [
        ("deepseek-v3", "head_dim", "latent attention"),
        ("deepseek-v3", "ffn_hidden_size", "experts"),
        ("gemma-2-9b", "num_layers", "alternate"),
        ("t5-large", "hidden_size", "another stack"),
    ],
)
def test_what_structure_forbids_is_kept_and_said(name: str, field: str, reason: str) -> None:
    space = space_of(name)
    assert any(field in note and reason in note for note in space.assumptions)
    values = space.grid().get(field)
    assert values is None or set(values.ravel().tolist()) == {space.baseline[field]}


def test_chunks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = same_size(space_of(), ParallelDims())
    monkeypatch.setattr("sartor.shapes.space.CHUNK", 1000)
    parts = same_size(space_of(), ParallelDims())
    assert np.array_equal(whole.num_params, parts.num_params)
    assert all(np.array_equal(a, b) for a, b in zip(whole.index, parts.index, strict=True))
