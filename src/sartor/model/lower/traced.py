"""A traced model as a `TransformerShape`, and its operators for another number of sequences.

A trace is from one device. Tensor, context and expert parallelism would change its operators, so they raise an error.
Sizes that grow with the batch are scaled by it; sequence length and dtype stay as traced.

A layer's parameters are one number and its operators the traced ones (`sartor.model.lower.traced`), so a traced shape
can be priced, placed and counted, but not edited.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.model.layer import Layer, Vectors
from sartor.model.lower.optimizer import ADAM_BYTES_PER_PARAM
from sartor.model.shape import LayerRun, Stack, TransformerShape
from sartor.model.traced import Grows, TracedCall, TracedLayer, TracedModel, traced_parts
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.operators import (
    Attention,
    DType,
    Gemm,
    GroupedGemm,
    MemoryBound,
    MemoryBoundKind,
    Operator,
    OperatorGraph,
    Part,
    Pass,
    Role,
)
from sartor.units import Floats, Ints


def lower_traced(
    traced: TracedModel, workload: Workload, dims: ParallelDims, *, optimizer: bool = False
) -> OperatorGraph:
    """Operators of a traced model on one device: forward and, in training, the traced backward; ``optimizer`` as in
    ``lower``.

    Raises ``InputError`` for a phase, sequence length, dtype or parallelism that was not traced.
    """
    _check_traced(traced, workload, dims)
    training = workload.phase is Phase.TRAIN
    scale = _batch_scale(traced, workload)
    last = len(traced.layers) + 1
    operators = [
        replace(grown(op, call, scale), block=_block(op, call, last))
        for op, call in zip(traced.graph.operators, traced.calls, strict=True)
        if training or op.pass_ is Pass.FORWARD
    ]
    steps = _optimizer_steps(traced) if optimizer and training else ()
    return OperatorGraph(operators=(*operators, *steps), edges=_edges(traced, training), tokens=workload.tokens)


def lower_traced_layer(
    traced: TracedModel, workload: Workload, dims: ParallelDims, layer: int
) -> tuple[OperatorGraph, OperatorGraph]:
    """One layer of a kind (an index into ``traced.layers``), forward and backward separately, with the edges between
    its operators; counts are for one layer. Backward is empty unless training."""
    _check_traced(traced, workload, dims)
    scale = _batch_scale(traced, workload)
    forward = _part(traced, layer, scale, workload.tokens, backward=False)
    if workload.phase is not Phase.TRAIN:
        return forward, OperatorGraph(operators=(), tokens=workload.tokens)
    return forward, _part(traced, layer, scale, workload.tokens, backward=True)


def _part(traced: TracedModel, layer: int, scale: object, tokens: Ints, *, backward: bool) -> OperatorGraph:
    alone = len(traced.layers) == 1 and all(call.layer is None for call in traced.calls)
    forward = [
        i
        for i, (op, call) in enumerate(zip(traced.graph.operators, traced.calls, strict=True))
        if (call.layer == layer or alone) and (op.pass_ is not Pass.FORWARD) == backward
    ]
    times = traced.layers[layer].count
    operators = []
    for i in forward:
        op = grown(traced.graph.operators[i], traced.calls[i], scale)
        operators.append(replace(op, count=max(int(op.count) // times, 1)))
    new = {old: index for index, old in enumerate(forward)}
    edges = tuple((new[a], new[b]) for a, b in traced.graph.edges if a in new and b in new)
    return OperatorGraph(operators=tuple(operators), edges=edges, tokens=tokens)


def _check_traced(traced: TracedModel, workload: Workload, dims: ParallelDims) -> None:
    """Raise ``InputError`` for anything that was not traced."""
    name = traced.name
    if workload.phase is Phase.DECODE:
        raise InputError("phase", "decode", f"{name} was traced forward over whole sequences", "train or prefill")
    if workload.phase is Phase.TRAIN and traced.phase != "train":
        must = f"{name} was traced forward alone; extract it with --phase train"
        raise InputError("phase", "train", must, "prefill")
    if workload.seq_len != traced.seq_len:
        must = f"{name} was traced at seq_len={traced.seq_len}; extract it again with --seq-len"
        raise InputError("seq_len", workload.seq_len, must, str(traced.seq_len))
    if np.any(np.asarray(workload.context_len) != 0):
        raise InputError("context_len", workload.context_len, f"{name} was traced without earlier tokens", "0")
    if workload.dtype is not traced.dtype:
        must = f"{name} was traced in {traced.dtype.value}; extract it again with --dtype"
        raise InputError("dtype", workload.dtype.value, must, traced.dtype.value)
    for word in ("tp", "cp", "ep"):
        degree = getattr(dims, word)
        if np.any(np.asarray(degree) != 1):
            must = f"{name} was traced on one device: a graph does not say how its operators split"
            raise InputError(word, int(np.max(degree)), must, "1")


def _batch_scale(traced: TracedModel, workload: Workload) -> Floats:
    """Number of sequences relative to the trace."""
    return np.asarray(workload.microbatch_size) / traced.microbatch_size


def grown(op: Operator, call: TracedCall, scale: Any) -> Operator:
    """The operator for ``scale`` times as many sequences; sizes are rounded up."""
    if call.grows is Grows.NOTHING or (np.ndim(scale) == 0 and float(scale) == 1.0):
        return op
    if isinstance(op, MemoryBound):
        flops, bytes_moved = op.flops * scale, op.bytes_moved * scale
        return replace(op, rows=_times(op.rows, scale), bytes_moved=bytes_moved, flops=flops)
    field = {Grows.BATCH: "batch", Grows.ROWS: "rows"}.get(call.grows, call.grows.value)
    if not isinstance(op, (Gemm, GroupedGemm, Attention)) or not hasattr(op, field):
        return op
    changed: JsonDict = {field: _times(getattr(op, field), scale)}
    return replace(op, **changed)


def _times(size: Ints, scale: object) -> Any:
    grown_ = np.ceil(np.asarray(size) * scale - 1e-9).astype(np.int64)
    return int(grown_) if grown_.ndim == 0 else grown_


def _optimizer_steps(traced: TracedModel) -> Iterator[MemoryBound]:
    """Adam steps for what is trained of every kind of layer, once per set of weights, and around the layers. States are
    fp32; 16-bit parameters are written beside their fp32 copies."""
    for i, layer in enumerate(traced.layers, 1):
        prefix = f"{layer.name}." if len(traced.layers) > 1 else ""
        yield _adam(f"{prefix}optimizer", layer.num_params - layer.frozen_params, layer.weight_sets, traced.dtype, i)
    first, *_, last = traced_parts(traced)
    ends = (
        ("embedding", first.trained_share * traced.embedding_params, 0),
        ("head", last.trained_share * traced.head_params, len(traced.layers) + 1),
    )
    for name, params, block in ends:
        if params:
            yield _adam(f"optimizer.{name}", round(params), 1, traced.dtype, block)


def _block(op: Operator, call: TracedCall, last: int) -> int:
    """Index of an operator's block in `sartor.model.shape.blocks`: embedding, kinds of layers, head."""
    if op.part is Part.LAYER:
        return 1 + (call.layer or 0)
    return 0 if op.part is Part.EMBEDDING else last


def _adam(name: str, params: int, count: int, dtype: DType, block: int) -> MemoryBound:
    bytes_each = ADAM_BYTES_PER_PARAM + (dtype.bytes if dtype.bytes < 4 else 0.0)
    return MemoryBound(
        name=name,
        role=Role.OPTIMIZER,
        kind=MemoryBoundKind.OPTIMIZER,
        rows=1,
        cols=max(params, 1),
        bytes_moved=bytes_each * params,
        flops=12.0 * params,
        count=count,
        block=block,
        pass_=Pass.OPTIMIZER,
        part=Part.OPTIMIZER,
    )


def _edges(traced: TracedModel, training: bool) -> tuple[tuple[int, int], ...]:
    if training:
        return traced.graph.edges
    forward = [i for i, op in enumerate(traced.graph.operators) if op.pass_ is Pass.FORWARD]
    new = {old: index for index, old in enumerate(forward)}
    return tuple((new[a], new[b]) for a, b in traced.graph.edges if a in new and b in new)


def traced_shape(traced: TracedModel) -> TransformerShape:
    """The shape of a traced model.

    >>> from sartor.read.graph_json import read_graph                      # doctest: +SKIP
    >>> traced_shape(read_graph(Path("graph.json"))).num_layers               # doctest: +SKIP
    """
    table = traced.vocab_size * traced.hidden_size
    looked_up = 0 < table <= traced.embedding_params
    vocab = traced.vocab_size if looked_up else 0
    lm_head = looked_up and _has_head(traced)
    untied = lm_head and not traced.tied_params and traced.head_params >= table
    around = traced.embedding_params + traced.head_params - (table if looked_up else 0) - (table if untied else 0)
    idle = traced.num_params - traced.num_active_params
    experts = sum(layer.expert_params * layer.weight_sets for layer in traced.layers)
    stack = Stack(
        name="decoder",
        hidden_size=traced.hidden_size,
        runs=tuple(_run(traced, layer, idle / experts if experts else 0.0) for layer in traced.layers),
    )
    return TransformerShape(
        name=traced.name,
        stacks=(stack,),
        vocab_size=vocab,
        max_positions=traced.seq_len,
        tied_embeddings=not untied,
        lm_head=lm_head,
        vectors=(Vectors(name="around", fixed=around),) if around else (),
        model_type=traced.model_type,
        traced=traced,
    )


def _has_head(traced: TracedModel) -> bool:
    """Whether a GEMM outside the layers computes logits over the vocabulary."""
    sizes = (
        (op.m, op.n)
        for op in traced.graph.operators
        if isinstance(op, Gemm) and op.part is Part.HEAD and op.pass_ is Pass.FORWARD
    )
    return any(traced.vocab_size in pair for pair in sizes)


def _run(traced: TracedModel, layer: TracedLayer, idle: float) -> LayerRun:
    asleep = round(layer.expert_params * idle)
    vectors = (
        Vectors(name="parameters", fixed=layer.num_params - asleep),
        *((Vectors(name="experts", fixed=asleep, idle=True),) if asleep else ()),
    )
    sequences = traced.microbatch_size
    return LayerRun(
        layer=Layer(
            vectors=vectors,
            name=layer.name,
            kept_bytes=layer.stash_bytes / sequences,
            again_bytes=layer.recomputed_bytes / sequences,
        ),
        count=layer.count,
        positions=layer.positions,
        weight_sets=layer.weight_sets if layer.weight_sets != layer.count else None,
    )
