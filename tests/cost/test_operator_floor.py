"""The floor of an operator lies below its latency on one core and on all, whatever the operator and the chip."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from accelerators import accelerators
from sartor.cost.chip.operator_latency import operator_floor, operator_latencies
from sartor.hardware.accelerator import Accelerator
from sartor.model.lower.graph import lower_layer
from sartor.model.shape import TransformerShape
from sartor.model.workload import ParallelDims, Workload
from sartor.schedules.makespan import fuse_graph
from strategies import shapes


@settings(max_examples=60, deadline=None)
@given(shapes(), accelerators(), st.sampled_from((1, 2)), st.sampled_from((1, 3)))
def test_no_latency_is_below_the_floor(shape: TransformerShape, a: Accelerator, tp: int, batch: int) -> None:
    layer = lower_layer(Workload(shape=shape, seq_len=48, microbatch_size=batch), ParallelDims(tp=tp))
    for graph in (layer.forward, layer.backward):
        fused = fuse_graph(graph).operators
        single, split = operator_latencies(fused, a)
        for op, one, together in zip(fused, single, split, strict=True):
            floor = operator_floor(op, a)
            slack = 1 + 1e-9
            assert float(floor.least_s) <= min(float(one), float(together)) * slack, op.name
            assert float(floor.tensor_s) <= float(together) * slack
            assert float(floor.vector_s) <= float(together) * slack
            assert float(floor.tensor_s) * float(a.num_tensor_cores) <= float(one) * slack
            assert float(floor.vector_s) * float(a.num_vector_cores) <= float(one) * slack
