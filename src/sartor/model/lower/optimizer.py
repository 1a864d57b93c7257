"""The optimizer step: parameters of one device, part by part, and the bytes moved to update them; parameters of
low-rank adapters of frozen linear layers (LoRA)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sartor.model.layer import DenseFfn, Ffn, Layer, Linear, Mixer, MoeFfn, Norm, StateSpaceMixer, Vectors
from sartor.model.lower.ffn import expert_width
from sartor.model.lower.linear import local_inner, local_width
from sartor.model.lower.setting import Setting
from sartor.model.shape import Block, Stack, TransformerShape, blocks
from sartor.model.training import TrainingJob
from sartor.model.workload import LoraTargets, ParallelDims
from sartor.operators import MemoryBound, MemoryBoundKind, Part, Pass, Role
from sartor.units import Ints, ceil_div

ADAM_BYTES_PER_PARAM = 28.0
"""fp32 gradient, weight and two moments read (16), weight and moments written (12). The states are those of Rajbhandari
et al. 2020 (ZeRO), sec. 3.1; 16-bit and narrower training also writes the 16-bit weight (2 more)."""


def layer_steps(setting: Setting, layer: Layer) -> tuple[MemoryBound, ...]:
    """One step per part of a layer, so that each depends only on the axes of its own sizes."""
    return tuple(adam(setting, f"optimizer.{name}", params) for name, params in layer_params(setting, layer))


def adam(setting: Setting, name: str, params: Ints) -> MemoryBound:
    """One Adam step on ``params`` parameters of this device (about 12 FLOPs each)."""
    copy = setting.element if setting.element < 4 else 0.0
    return MemoryBound(
        name=name,
        role=Role.OPTIMIZER,
        kind=MemoryBoundKind.OPTIMIZER,
        rows=1,
        cols=params,
        bytes_moved=(ADAM_BYTES_PER_PARAM + copy) * params,
        flops=12.0 * params,
        pass_=Pass.OPTIMIZER,
        part=Part.OPTIMIZER,
    )


def layer_params(setting: Setting, layer: Layer) -> Iterator[tuple[str, Ints]]:
    """Parameters of one layer on one device, by part; the layer's norms and vectors are added to the first part."""
    h, tp = setting.hidden_size, setting.tp
    rest: Ints = _vectors(h, layer.norms, layer.vectors) + sum(_local_params(x, tp) for x in layer.linears)
    for mixer in layer.mixers:
        yield _label(mixer), _mixer_params(setting, mixer) + rest
        rest = 0
    for part in layer.all_ffns:
        yield part.name, _ffn_params(setting, part) + rest
        rest = 0
    if not layer.mixers and not layer.all_ffns:
        yield "layer", rest


def _mixer_params(setting: Setting, mixer: Mixer) -> Ints:
    kv_heads = 1 if isinstance(mixer, StateSpaceMixer) else mixer.num_kv_heads
    matrices: Ints = sum((_local_params(x, setting.tp, kv_heads) for x in mixer.linears(setting.hidden_size)), 0)
    return matrices + _vectors(setting.hidden_size, (), mixer.vectors)


def _ffn_params(setting: Setting, part: Ffn) -> Ints:
    total: Ints = _common_ffn_params(setting, part) + expert_params(setting, part)
    return total


def _common_ffn_params(setting: Setting, part: Ffn) -> Ints:
    """Parameters that every token uses: all of a dense part; router, shared experts and projections of a MoE part."""
    h, tp = setting.hidden_size, setting.tp
    params: Ints = sum((_local_params(x, tp) for x in part.linears(h)), 0) + _vectors(h, (), part.vectors)
    shared = None if isinstance(part, DenseFfn) else part.shared
    return params if shared is None else params + _vectors(h, (), shared.vectors)


def expert_params(setting: Setting, part: Ffn) -> Ints:
    """Parameters of this device's routed experts: num_experts / ep of them, whole or split over the tensor ranks."""
    if isinstance(part, DenseFfn):
        return 0
    tp = setting.tp if setting.kernels.splits_experts else 1
    expert: Ints = sum((_local_params(x, tp) for x in part.expert_linears(setting.hidden_size)), 0)
    expert = expert + _vectors(expert_width(setting, part), (), part.expert.vectors)
    local_experts: Ints = ceil_div(part.num_experts, setting.dims.ep) * expert
    return local_experts


def outer_params(setting: Setting, shape: TransformerShape) -> Iterator[tuple[str, Ints]]:
    """Parameters around the layers of the main stack: tables (split over the vocabulary), head, final norms."""
    width = shape.hidden_size if shape.embedding_size is None else shape.embedding_size
    table = ceil_div(shape.vocab_size, setting.tp)
    yield "embedding", table * width + shape.learned_positions * width
    untied = table * shape.hidden_size if shape.lm_head and not shape.tied_embeddings else 0
    bias = table if shape.lm_head and shape.lm_head_bias else 0
    linears = sum(_local_params(x, setting.tp) for x in shape.linears)
    yield "head", untied + bias + linears + _vectors(shape.hidden_size, (), shape.vectors)


def stack_params(setting: Setting, stack: Stack) -> Ints:
    """Parameters of a stack outside its layers: final and embedding norms, projections."""
    linears: Ints = sum((_local_params(x, setting.tp) for x in stack.linears), 0)
    return linears + _vectors(stack.hidden_size, stack.norms, stack.vectors)


def _local_params(linear: Linear, tp: Ints, kv_heads: Ints = 1) -> Ints:
    """Parameters of a linear layer that one device holds (every device holds all of a row-parallel bias)."""
    width = local_width(linear, tp, kv_heads)
    return linear.count * (width * local_inner(linear, tp) + (width if linear.bias else 0))


def _vectors(hidden_size: Ints, norms: Sequence[Norm], vectors: Sequence[Vectors]) -> Ints:
    """Norms and other vectors. They are too small to be split, so every device holds all of them."""
    total: Ints = sum((norm.params(hidden_size) for norm in norms), 0)
    return total + sum((vector.params(hidden_size) for vector in vectors), 0)


def _label(mixer: Mixer) -> str:
    return "cross_attention" if not isinstance(mixer, StateSpaceMixer) and mixer.cross else mixer.name


# -- adapters --------------------------------------------------------------------------------------------------------

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
