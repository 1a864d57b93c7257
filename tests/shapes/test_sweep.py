"""Sweeps of one field, against asking at every value alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.model.counts import count_params
from sartor.model.editing import edit
from sartor.model.workload import ParallelDims, Workload
from sartor.model.zoo import load_model
from sartor.shapes.evaluate import Evaluator, sweep

GPUS = [load_gpu("a100"), load_gpu("h100")]
ALONE = Evaluator(dims=ParallelDims(), calibrations={})


def asked(name: str = "gpt3-2.7b") -> Workload:
    return Workload(shape=load_model(name), microbatch_size=2, seq_len=1024)


@pytest.mark.parametrize("field", ["ffn_hidden_size", "vocab_size", "num_layers"])
def test_a_sweep_is_every_value_asked_alone(field: str) -> None:
    own = asked().shape.fields()[field]
    values = [own, own + 8, own + 64]
    found = sweep(asked(), GPUS, field=field, values=values)
    assert found.baseline == own
    for i, value in enumerate(values):
        workload = replace(asked(), shape=edit(asked().shape, **{field: value}))
        assert found.num_params[i] == count_params(workload.shape).total
        for gpu in GPUS:
            assert found.time_s[gpu.name][i] == pytest.approx(ALONE.one(workload, gpu).time_s, rel=1e-12)


@pytest.mark.parametrize("field", ["microbatch_size", "seq_len"])
def test_the_workload_s_own_sizes_can_be_swept(field: str) -> None:
    values = [1, 7, 64]
    found = sweep(asked(), GPUS[:1], field=field, values=values)
    for i, value in enumerate(values):
        assert found.time_s[GPUS[0].name][i] == pytest.approx(
            ALONE.one(replace(asked(), **{field: value}), GPUS[0]).time_s, rel=1e-12
        )


def test_head_dimension_follows_the_number_of_heads() -> None:
    found = sweep(asked(), GPUS[:1], field="num_heads", values=[16, 20, 32, 33, 40])
    assert np.isfinite(found.time_s[GPUS[0].name]).tolist() == [True, True, True, False, True]
    assert len(set(found.num_params[[0, 1, 2, 4]].tolist())) == 1


def test_grouped_heads_that_do_not_divide_cannot_be() -> None:
    found = sweep(asked("llama-3.1-8b"), GPUS[:1], field="num_kv_heads", values=[5, 8, 16])
    assert np.isfinite(found.time_s[GPUS[0].name]).tolist() == [False, True, True]


def test_a_field_the_model_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(InputError, match=r"num_experts.*ffn_hidden_size"):
        sweep(asked(), GPUS, field="num_experts", values=[8])


def test_values_must_be_positive() -> None:
    with pytest.raises(InputError, match="positive"):
        sweep(asked(), GPUS, field="num_layers", values=[0, 1])
