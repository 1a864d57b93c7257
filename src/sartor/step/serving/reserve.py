"""What a serving engine keeps of a device besides weights, keys and values.

An engine runs its largest step once before it sizes the cache: ``max_num_batched_tokens`` tokens pass the layers, and
in vLLM ``max_num_seqs`` of them are sampled. The peak of the two, NCCL's buffers and the CUDA context, as far as the
release counts them, come off the share of memory that it fills.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sartor.hardware.gpu import Gpu
from sartor.model.layer import DenseFfn, Layer, Linear, MoeFfn, Split, StateSpaceMixer
from sartor.model.lower.linear import local_width
from sartor.model.shape import TransformerShape
from sartor.model.workload import ParallelDims, Workload
from sartor.step.footprint import usable_of
from sartor.step.serving.engines import CacheShare, Engine
from sartor.units import GIB, MIB, Floats, Ints

CONTEXT_BYTES = 0.5 * GIB
"""CUDA context of a process that serves (recalled: 450 to 550 MiB on Ampere, Hopper and Blackwell)."""
LIBRARY_BYTES = 0.2 * GIB
"""Kernels and workspaces that libraries load outside the allocator during a pass (recalled: 0.1 to 0.3 GiB logged as
non-torch memory on one GPU)."""
COMMUNICATOR_BYTES = 0.7 * GIB
"""NCCL's buffers for one communicator of a node with switched links: 24 channels, each with about three connections of
9.4 MiB for the three protocols (NCCL's default buffer sizes: 4 MiB simple, 4.7 MiB LL128, 0.5 MiB LL; recalled)."""
GRAPH_BYTES_PER_LAYER = 16 * MIB
"""Of the CUDA graphs of all captured sizes (recalled: 0.5 GiB for Llama 3.1 8B, 1.3 GiB for 70B in vLLM's logs)."""
MOST_EXPERT_TOKENS = 32768
"""Tokens that vLLM's experts take at once (``VLLM_FUSED_MOE_CHUNK_SIZE``)."""
ELEMENT = 2.0
"""Bytes of an activation."""


def reserve(
    engine: Engine, workload: Workload, dims: ParallelDims, gpu: Gpu, weights: Floats
) -> tuple[Floats, Floats, Floats]:
    """Bytes of a device that an engine may fill, and of them those of its largest step and of context, libraries, NCCL
    and graphs; ``weights`` are the device's bytes of them."""
    sizing, share = engine.sizing, engine.utilization(gpu, dims.tp, dims.ep)
    device = usable_of(gpu)
    joined = np.greater(1.0 * dims.tp * dims.ep, 1)
    context: Floats = LIBRARY_BYTES + CONTEXT_BYTES * sizing.counts_context
    context = context + np.where(joined, sizing.communicators * COMMUNICATOR_BYTES, 0.0)
    if sizing.counts_graphs:
        context = context + GRAPH_BYTES_PER_LAYER * workload.shape.num_layers
    if sizing.share_of is CacheShare.BEFORE_LOADING:
        return share * device, 0.0, share * context
    peak = step_bytes(workload.shape, dims, engine.step_tokens(gpu))
    if sizing.logit_copies:
        peak = np.maximum(peak, _sampling_bytes(workload.shape, engine, gpu))
    if sizing.share_of is CacheShare.AFTER_LOADING:
        return device - (1 - share) * np.maximum(device - weights - peak - context, 0.0), peak, context
    return share * device, peak, context


def _sampling_bytes(shape: TransformerShape, engine: Engine, gpu: Gpu) -> Floats:
    """Peak while the profile run samples: copies of the sampled rows' logits beside all hidden states."""
    tokens = engine.step_tokens(gpu)
    rows = min(engine.step_rows(gpu), tokens)
    logits = 4.0 * rows * shape.vocab_size if shape.lm_head else 0.0
    return engine.sizing.logit_copies * logits + ELEMENT * tokens * shape.hidden_size


def step_bytes(shape: TransformerShape, dims: ParallelDims, tokens: int) -> Floats:
    """Peak of a step of so many tokens: the residual stream with a layer's input and output, and the widest part of any
    layer."""
    stream: Floats = 3 * ELEMENT * tokens * shape.hidden_size
    peak: Floats = 0.0
    for stack in shape.stacks:
        for run in stack.runs if stack.is_text else ():
            for part in _parts(run.layer, stack.hidden_size, dims, tokens):
                peak = np.maximum(peak, part)
    return stream + peak


def _parts(layer: Layer, hidden_size: Ints, dims: ParallelDims, tokens: int) -> Iterator[Floats]:
    """Bytes of activations inside each part of a layer."""
    for mixer in layer.mixers:
        kv_heads = 1 if isinstance(mixer, StateSpaceMixer) else mixer.num_kv_heads
        yield ELEMENT * tokens * _widths(mixer.linears(hidden_size), dims.tp, kv_heads)
    for ffn in layer.all_ffns:
        if isinstance(ffn, DenseFfn):
            yield ELEMENT * tokens * (_widths(ffn.linears(hidden_size), dims.tp) + 1.0 * ffn.ffn_hidden_size / dims.tp)
        elif isinstance(ffn, MoeFfn):
            yield _expert_bytes(ffn, hidden_size, dims, tokens)


def _widths(linears: tuple[Linear, ...], tp: Ints, kv_heads: Ints = 1) -> Floats:
    """Outputs of linear layers on one device, but for the last, which is the residual's."""
    inner = (linear for linear in linears if linear.split is not Split.ROW)
    return sum((1.0 * local_width(linear, tp, kv_heads) * linear.count for linear in inner), 0.0)


def _expert_bytes(ffn: MoeFfn, hidden_size: Ints, dims: ParallelDims, tokens: int) -> Floats:
    """Workspaces of a fused mixture (vLLM's ``fused_experts_impl``): one cache for the first product and the last, one
    for the second's input, and the sum, for every expert that a token visits. Copies of attention bring their tokens
    together."""
    together = np.minimum(1.0 * tokens * dims.ep, np.maximum(tokens, MOST_EXPERT_TOKENS))
    routed = together * ffn.experts_per_token
    width = 1.0 * ffn.expert.ffn_hidden_size / dims.tp
    up = (2.0 if ffn.expert.gated else 1.0) * width
    return ELEMENT * (routed * (np.maximum(up, hidden_size) + width) + together * hidden_size)
