"""One layer as a graph: which operator waits for which, forward and backward apart.

``lower`` lists the operators of a device and counts equal ones. A schedule of operators needs each of them and its
dependencies. Both come from the same pieces. Projections with the same input are independent of each other; so are the
parts of a parallel layer, and a shared expert and the routed ones. Nothing waits for a weight gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

from sartor.model.lower.graph import setting_of, unique
from sartor.model.lower.kernels import Kernels
from sartor.model.lower.layer import whole_layer
from sartor.model.lower.piece import Flow, laid_out, wired
from sartor.model.lower.split import check, check_sizes
from sartor.model.lower.traced import lower_traced_layer
from sartor.model.parallel import ParallelDims
from sartor.model.workload import Workload
from sartor.operators import OperatorGraph
from sartor.units import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """Operators of one layer with the edges between them; ``backward`` is empty unless training."""

    forward: OperatorGraph
    backward: OperatorGraph


def lower_layer(
    workload: Workload, dims: ParallelDims | None = None, run: int = 0, kernels: Kernels | None = None
) -> LayerGraph:
    """The graph of one layer of the main stack's ``run``-th kind on one device of a tensor-parallel group.

    The operators add up to what ``lower`` counts for that layer. Latent attention and state-space parts are chains in
    execution order: valid, but a schedule could overlap more of them.

    >>> from sartor.model.zoo import load_model
    >>> graph = lower_layer(Workload(shape=load_model("gpt3-175b"), seq_len=2048)).forward
    >>> [(graph.operators[a].name, graph.operators[b].name) for a, b in graph.edges][:2]
    [('norm', 'qkv'), ('qkv', 'attention')]
    """
    dims = ParallelDims() if dims is None else dims
    check_sizes(workload, dims)
    if workload.shape.traced is not None:
        forward, backward = lower_traced_layer(workload.shape.traced, workload, dims, run)
        return LayerGraph(forward=forward, backward=backward)
    check(workload.shape, dims)
    stack = workload.shape.main
    setting = setting_of(workload, dims, stack, kernels or Kernels())
    piece = whole_layer(setting, stack.runs[run].layer)
    return LayerGraph(forward=_graph(piece.forward, workload.tokens), backward=_graph(piece.backward, workload.tokens))


def _graph(flow: Flow, tokens: Ints) -> OperatorGraph:
    return OperatorGraph(operators=unique(tuple(laid_out(flow))), edges=tuple(wired(flow)), tokens=tokens)
