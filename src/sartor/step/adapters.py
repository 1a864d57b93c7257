"""Low-rank adapters of frozen linear layers (LoRA): which layers have one, and how many parameters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sartor.model.layer import Layer, Linear, MoeFfn, StateSpaceMixer
from sartor.model.lower.linear import local_inner, local_width
from sartor.model.shape import Block, TransformerShape, blocks
from sartor.model.training import TrainingJob
from sartor.model.workload import LoraTargets, ParallelDims
from sartor.operators import Role
from sartor.units import Ints, ceil_div

QUERIES_AND_VALUES = frozenset({"q", "v", "q_up", "kv_up"})
"""Names of the linear layers that put out queries or values."""


def adapter_params(job: TrainingJob, dims: ParallelDims, block: Block) -> Ints:
    """Parameters of one layer's adapters on a device: rank x (inputs + outputs) of every adapted linear layer, whose
    sides are split as the layer's are."""
    if block.layer is None or not job.lora_rank:
        return 0
    split = dims.tp if job.trainer.splits_experts else 1
    widths: Ints = 0
    for linear, kv_heads, is_expert in _adapted(block.layer, block.stack.hidden_size, job.lora_targets):
        tp = split if is_expert else dims.tp
        each = linear.count * (local_width(linear, tp, kv_heads) + local_inner(linear, tp))
        widths = widths + (ceil_div(is_expert, dims.ep) * each if is_expert else each)
    return job.lora_rank * widths


def _adapted(layer: Layer, hidden_size: Ints, targets: LoraTargets) -> Iterator[tuple[Linear, Ints, Ints]]:
    """Every adapted linear layer of a layer, its key and value heads, and the number of experts that have one each; 0
    outside experts."""
    for mixer in layer.mixers:
        heads = 1 if isinstance(mixer, StateSpaceMixer) else mixer.num_kv_heads
        for linear in mixer.linears(hidden_size):
            if targets is not LoraTargets.QUERY_VALUE or linear.name in QUERIES_AND_VALUES:
                yield linear, heads, 0
    for part in layer.all_ffns if targets is LoraTargets.ALL else ():
        yield from ((linear, 1, 0) for linear in part.linears(hidden_size) if linear.role is not Role.ROUTER)
        if isinstance(part, MoeFfn):
            yield from ((linear, 1, part.num_experts) for linear in part.expert_linears(hidden_size))


def largest_matrix(shape: TransformerShape) -> float:
    """Parameters of the largest linear layer of the blocks; of one expert where there are experts."""
    sizes = [0.0]
    for block in blocks(shape):
        for part in () if block.layer is None else (*block.layer.mixers, *block.layer.all_ffns):
            linears = part.linears(block.stack.hidden_size)
            linears += part.expert_linears(block.stack.hidden_size) if isinstance(part, MoeFfn) else ()
            sizes += [float(np.max(x.d_in * x.d_out)) for x in linears]
    return max(sizes)
