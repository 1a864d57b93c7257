"""Several graphs priced in one pass: the answers of one after the other, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sartor.cost.price import price, price_all
from sartor.hardware.catalog import load_gpu
from sartor.model.editing import edit
from sartor.model.lower import lower
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.model.zoo import load_model
from sartor.operators import OperatorGraph

MODELS = ("gpt2-xl", "llama-2-70b", "mixtral-8x7b", "deepseek-v3", "gemma-2-9b", "t5-large", "falcon-7b", "gpt-oss-20b")


def varied(model: str, phase: Phase) -> list[OperatorGraph]:
    """The model as it is, and with one field at several values at a time."""
    plain = Workload(
        shape=load_model(model), seq_len=2048, phase=phase, context_len=1024 if phase is Phase.DECODE else 0
    )
    own = plain.shape.fields()
    changes: list[dict[str, Any]] = [
        {name: int(own[name]) + np.arange(n) * 8} for n, name in ((3, "vocab_size"), (5, "ffn_hidden_size"))
        if name in own
    ]  # fmt: skip
    shapes = [plain.shape, *(edit(plain.shape, **change) for change in changes)]
    others = [replace(plain, microbatch_size=np.arange(1, 5)), replace(plain, seq_len=np.array([512, 2048]))]
    return [lower(each) for each in (*(replace(plain, shape=shape) for shape in shapes), *others)]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("phase", list(Phase))
def test_graphs_priced_together_cost_what_each_costs_alone(model: str, phase: Phase) -> None:
    if phase is Phase.DECODE and load_model(model).encoder_only:
        pytest.skip("an encoder does not decode")
    gpu, graphs = load_gpu("h100_sxm"), varied(model, phase)
    for graph, found in zip(graphs, price_all(graphs, gpu), strict=True):
        alone = price(graph, gpu, details=False)
        assert np.array_equal(found.time_s, alone.time_s)
        assert np.array_equal(found.log_sigma, alone.log_sigma)
        for cost, single in zip(found.costs, alone.costs, strict=True):
            assert np.array_equal(np.broadcast_to(single.time_s, np.shape(cost.time_s)), cost.time_s)
            assert cost.source is single.source


@pytest.mark.parametrize("gpu", ["a100_sxm", "mi300x", "l4"])
def test_splits_and_wider_intervals_are_kept(gpu: str) -> None:
    device, shape = load_gpu(gpu), load_model("mixtral-8x7b")
    graphs = [lower(Workload(shape=shape, seq_len=np.array([256, 4096])), ParallelDims(tp=tp)) for tp in (1, 2, 8)]
    for graph, found in zip(graphs, price_all(graphs, device, sigma_factor=2.0), strict=True):
        alone = price(graph, device, details=False, sigma_factor=2.0)
        assert np.array_equal(found.time_s, alone.time_s)
        assert np.array_equal(found.high_s, alone.high_s)


def test_nothing_asked_is_nothing_answered() -> None:
    assert price_all([], load_gpu("a100_sxm")) == []
