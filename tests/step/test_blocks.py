"""A model as a pipeline sees it: no layer and no parameter is lost or counted twice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from sartor.model.counts import count_params
from sartor.model.editing import edit
from sartor.model.lower import lower
from sartor.model.shape import BlockKind, TransformerShape, blocks, layer_order
from sartor.model.training import TrainingJob
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.model.zoo import load_model, model_names
from sartor.operators import Part
from sartor.step.states import block_params
from strategies import shapes


def _total(shape: TransformerShape, dims: ParallelDims) -> int:
    job = TrainingJob(shape=shape, seq_len=128, global_batch_size=8)
    pairs = zip(blocks(shape), block_params(job, dims), strict=True)
    return sum(
        int(b.weight_sets * p.dense + b.weight_sets * p.expert * dims.ep)
        for b, p in pairs
        if b.kind is not BlockKind.MTP
    )


@pytest.mark.parametrize("name", model_names())
def test_parameters_of_the_blocks_are_those_of_the_model(name: str) -> None:
    shape = load_model(name)
    assert _total(shape, ParallelDims()) == count_params(shape).text


@given(shapes())
def test_blocks_hold_all_parameters_of_any_shape(shape: TransformerShape) -> None:
    assert _total(shape, ParallelDims()) == count_params(shape).text


@given(shapes())
def test_tensor_ranks_together_hold_the_model_and_copies_of_what_is_not_split(shape: TransformerShape) -> None:
    whole, half = _total(shape, ParallelDims()), _total(shape, ParallelDims(tp=2))
    assert whole / 2 <= half <= whole


def test_expert_ranks_together_hold_every_expert_once() -> None:
    shape = load_model("mixtral-8x7b")
    assert _total(shape, ParallelDims(ep=4)) == _total(shape, ParallelDims())


def test_arrays_of_degrees_give_what_each_gives_alone() -> None:
    job = TrainingJob(shape=load_model("deepseek-v3"), seq_len=4096, global_batch_size=8)
    many = block_params(job, ParallelDims(tp=np.array([1, 2, 8]), ep=np.array([64, 8, 4])))
    for i, (tp, ep) in enumerate([(1, 64), (2, 8), (8, 4)]):
        for a, b in zip(many, block_params(job, ParallelDims(tp=tp, ep=ep)), strict=True):
            assert np.broadcast_to(a.dense, 3)[i] == b.dense
            assert np.broadcast_to(a.expert, 3)[i] == b.expert


@pytest.mark.parametrize("name", model_names())
def test_every_layer_has_its_place(name: str) -> None:
    shape = load_model(name)
    order = layer_order(shape)
    for i, block in enumerate(blocks(shape)):
        assert np.count_nonzero(order == i) == (block.count if block.kind is BlockKind.LAYER else 0)


def test_interleaved_layers_keep_their_places_and_are_spread_when_the_depth_changes() -> None:
    shape = load_model("gemma-3-27b")
    local, full = 1, 2
    assert list(layer_order(shape)[:7]) == [local] * 5 + [full, local]
    deeper = layer_order(edit(shape, num_layers=70))
    assert len(deeper) == 70
    assert np.diff(np.flatnonzero(deeper == full)).max() <= 8


def test_dense_layers_come_before_experts_and_an_encoder_before_its_decoder() -> None:
    assert list(layer_order(load_model("deepseek-v3"))) == [1] * 3 + [2] * 58
    assert [b.name for b in blocks(load_model("t5-large"))] == ["embedding", "encoder", "decoder", "head"]


@pytest.mark.parametrize("name", ["deepseek-v3", "gemma-3-27b", "t5-large", "llama-2-7b"])
def test_every_operator_of_a_layer_belongs_to_a_block_of_layers_and_every_block_has_some(name: str) -> None:
    shape = load_model(name)
    kinds = (BlockKind.LAYER, BlockKind.MTP)
    layers = {i for i, b in enumerate(blocks(shape)) if b.kind in kinds}
    graph = lower(Workload(shape=shape, phase=Phase.TRAIN, seq_len=128))
    assert {op.block for op in graph.operators if op.part is Part.LAYER} == layers


def test_a_tied_head_says_how_large_the_table_is_that_it_borrows() -> None:
    shape = load_model("gpt2-small")
    job = TrainingJob(shape=shape, seq_len=1024, global_batch_size=8)
    assert block_params(job, ParallelDims())[-1].tied == shape.vocab_size * shape.hidden_size
