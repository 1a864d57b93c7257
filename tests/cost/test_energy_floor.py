"""The floor of an operator's energy lies below its energy, whatever the operator and the chip, and is not far below."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from accelerators import TPU, accelerators
from sartor.cost.chip.ownership import energy_floor_j, operator_energy
from sartor.hardware.accelerator import Accelerator
from sartor.model.lower.graph import lower_layer
from sartor.model.shape import TransformerShape
from sartor.model.workload import ParallelDims, Workload
from sartor.operators import Gemm, Operator
from strategies import shapes


def dynamic_j(op: Operator, a: Accelerator) -> float:
    energy = operator_energy(op, a)
    return float(energy.total_j) - float(energy.static_j)


@settings(max_examples=60, deadline=None)
@given(shapes(), accelerators(), st.sampled_from((1, 2)), st.sampled_from((1, 3)))
def test_no_energy_is_below_the_floor(shape: TransformerShape, a: Accelerator, tp: int, batch: int) -> None:
    layer = lower_layer(Workload(shape=shape, seq_len=48, microbatch_size=batch), ParallelDims(tp=tp))
    for graph in (layer.forward, layer.backward):
        for op in graph.operators:
            assert float(np.asarray(energy_floor_j(op, a))) <= dynamic_j(op, a) * (1 + 1e-9), op.name


def test_the_floor_of_a_large_gemm_is_most_of_its_energy() -> None:
    op = Gemm(name="g", m=4096, n=4096, k=4096)
    assert float(np.asarray(energy_floor_j(op, TPU))) > 0.6 * dynamic_j(op, TPU)
