"""A model as it was traced: the operators a PyTorch module ran, folded over its repeated layers.

``sartor extract`` makes one; `sartor.model.lower.traced` takes it for other batches. It is bound to what was traced:
the sequence length, the dtype, one device. Only the number of sequences can still be chosen, since every operator says
which of its sizes grows with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from sartor.operators import DType, OperatorGraph


class Grows(Enum):
    """The size of an operator that is proportional to the number of sequences."""

    NOTHING = "nothing"
    BATCH = "batch"
    M = "m"
    N = "n"
    K = "k"
    ROWS = "rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedCall:
    """Where an operator of the graph comes from."""

    module: str
    """Path of the module it ran in, ``*`` for the layer's number; empty for the model itself."""
    call: str
    """The PyTorch operator (``aten::addmm``); of several in one kernel the first, with how many follow."""
    inputs: tuple[tuple[int, ...], ...] = ()
    """Shapes of the tensors it read, views counted as they were seen."""
    outputs: tuple[tuple[int, ...], ...] = ()
    layer: int | None = None
    """Index of its kind of layer; None outside the layers."""
    grows: Grows = Grows.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedLayer:
    """One kind of layer: ``count`` executions of equal operators, at ``positions`` among all layers in execution order.

    ``num_params`` are of one layer; ``weight_sets`` says how many of the ``count`` hold weights of their own.
    ``output_bytes`` is what one layer hands to the next for the traced number of sequences.
    """

    name: str
    module: str
    count: int
    positions: tuple[int, ...]
    num_params: int
    expert_params: int = 0
    weight_sets: int = 1
    stash_bytes: float = 0.0
    """Bytes that eager autograd keeps of one layer until backward, parameters left out, as traced."""
    output_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedModel:
    """The operator graph of a traced module, with where every operator comes from.

    ``calls`` is aligned with ``graph.operators``. ``embedding_params`` and ``head_params`` lie before and after the
    layers; ``tied_params`` are those of the head that are the embedding's own. ``phase`` is ``train`` (forward and
    backward) or ``prefill`` (forward alone).
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
