"""A traced model: the operators a PyTorch module ran, folded over its repeated layers.

``sartor extract`` makes one; `sartor.model.lower.traced` lowers it for other batches. It is limited to the traced
sequence length, dtype and one device. Only the number of sequences can change: every operator marks the sizes that grow
with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from sartor.operators import DType, OperatorGraph, is_model_product


class Grows(Enum):
    """The size of an operator that grows with the number of sequences."""

    NOTHING = "nothing"
    BATCH = "batch"
    M = "m"
    N = "n"
    K = "k"
    ROWS = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """The origin of an operator of the graph."""

    module: str
    """Path of the module it ran in, ``*`` for the layer's number; empty for the model itself."""
    call: str
    """The PyTorch operator (``aten::addmm``); for several in one kernel, the first and the number of others."""
    inputs: tuple[tuple[int, ...], ...] = ()
    """Shapes of the tensors it read, with views as seen."""
    outputs: tuple[tuple[int, ...], ...] = ()
    layer: int | None = None
    """Index of its kind of layer; None outside the layers."""
    grows: Grows = Grows.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedLayer:
    """One kind of layer: ``count`` executions of equal operators, at ``positions`` among all layers in execution order.

    ``num_params`` are of one layer; ``weight_sets`` says how many of the ``count`` hold weights of their own.
    ``output_bytes`` is what one layer passes to the next for the traced number of sequences.
    """

    name: str
    module: str
    count: int
    positions: tuple[int, ...]
    num_params: int
    frozen_params: int = 0
    """Parameters that are not trained."""
    buffer_bytes: float = 0.0
    """Tensors besides the parameters, whatever the batch: quantized weights, masks, weights converted for backward."""
    expert_params: int = 0
    weight_sets: int = 1
    stash_bytes: float = 0.0
    """Bytes kept of one layer until backward, without parameters, as traced."""
    recomputed_bytes: float = 0.0
    """Bytes that checkpointing inside the model computes again for one layer's backward."""
    output_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
    """The operator graph of a traced module, with the origin of every operator.

    ``calls`` is aligned with ``graph.operators``. ``embedding_params`` and ``head_params`` are before and after the
    layers; ``tied_params`` are those the head shares with the embedding. ``phase`` is ``train`` (forward and backward)
    or ``prefill`` (forward alone).
    """

    name: str
    source: str
    graph: OperatorGraph
    calls: tuple[TracedCall, ...]
    layers: tuple[TracedLayer, ...]
    num_params: int
    num_active_params: int
    embedding_params: int
    head_params: int
    microbatch_size: int
    seq_len: int
    dtype: DType
    frozen_params: int = 0
    """Parameters that are not trained, of the whole model; those of the embedding are ``frozen_embedding_params``."""
    frozen_embedding_params: int = 0
    buffer_bytes: float = 0.0
    """Buffers outside the layers."""
    phase: str = "train"
    tied_params: int = 0
    vocab_size: int = 0
    hidden_size: int = 0
    model_type: str = ""
    module_class: str = ""
    inputs: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    """Name, shape and dtype of every input."""
    versions: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def all_buffer_bytes(self) -> float:
        """Buffers of the whole model."""
        return self.buffer_bytes + sum(layer.buffer_bytes * layer.weight_sets for layer in self.layers)


def products_dtype(traced: TracedModel) -> DType:
    """The dtype of most FLOPs of matrix multiplications: with ``torch.autocast`` not that of the parameters."""
    flops: dict[DType, float] = {}
    for op in traced.graph.operators:
        if is_model_product(op):
            flops[op.dtype] = flops.get(op.dtype, 0.0) + float(op.flops * op.count)  # type: ignore[union-attr]
    return max(flops, key=lambda dtype: flops[dtype], default=traced.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TracedPart:
    """What training holds of one block besides the weights: which share of them is trained, and bytes of buffers."""

    trained_share: float
    buffer_bytes: float


def traced_parts(traced: TracedModel) -> tuple[_TracedPart, ...]:
    """The parts of a traced model, as `sartor.model.shape.blocks` orders them: embedding, kinds of layers, head."""
    inside = sum(layer.frozen_params * layer.weight_sets for layer in traced.layers)
    ends = (
        (traced.embedding_params, traced.frozen_embedding_params, traced.buffer_bytes),
        (traced.head_params, traced.frozen_params - inside - traced.frozen_embedding_params, 0.0),
    )
    layers = ((layer.num_params, layer.frozen_params, layer.buffer_bytes) for layer in traced.layers)
    first, last = (_part(*end) for end in ends)
    return (first, *(_part(*layer) for layer in layers), last)


def _part(params: int, frozen: int, buffer_bytes: float) -> _TracedPart:
    share = 1.0 - min(max(frozen, 0) / params, 1.0) if params else 1.0
    return _TracedPart(trained_share=share, buffer_bytes=buffer_bytes)
