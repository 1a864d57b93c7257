"""Memory of a device that serves a model: weights, key/value cache, activations; and what would fit.

An engine runs its largest step once before it sizes the cache: ``max_num_batched_tokens`` tokens pass the layers, and
in vLLM ``max_num_seqs`` of them are sampled. The peak of the two, NCCL's buffers and the CUDA context, as far as the
release counts them, come off the share of memory that it fills.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.price import Estimate, price
from sartor.hardware.gpu import Gpu
from sartor.model.counts import count_params, run_sets
from sartor.model.layer import (
    AttentionMixer,
    DenseFfn,
    LatentAttentionMixer,
    Layer,
    Linear,
    MoeFfn,
    Split,
    StateSpaceMixer,
)
from sartor.model.lower import lower
from sartor.model.lower.linear import local_width
from sartor.model.lower.setting import feasible
from sartor.model.shape import TransformerShape
from sartor.model.training import TrainingPlan
from sartor.model.workload import WIDE_BYTES, ParallelDims, Phase, StoredTypes, Workload
from sartor.operators import Collective, DType, Gemm, GroupedGemm, OperatorGraph, Role
from sartor.step.footprint import usable_of
from sartor.step.serving.engines import CacheShare, Engine
from sartor.step.states import context_bytes
from sartor.units import GIB, MIB, Bools, Floats, Ints, ceil_div, distinct, round_up

WIDTHS = (1, 2, 4, 8, 16, 32, 64)
"""Tensor-parallel degrees tried for a model that does not fit."""

MANY = 1 << 20
"""Upper limit of the search for how many sequences fit."""

STATE_BYTES = 4.0
"""Per element of a state-space layer's state, which is kept in fp32 (Mamba-2's released inference code)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceMemory:
    """Bytes of one device of a tensor- and expert-parallel group that serves a model."""

    param_bytes: Floats
    kv_cache_bytes: Floats
    """Keys and values of all sequences: their context and the new tokens."""
    workspace_bytes: Floats
    """Of an engine, what it keeps for its largest step; else the residual stream, and the inputs and outputs of the
    largest operator."""
    context_bytes: Floats
    """CUDA context, libraries, NCCL's buffers, as far as an engine counts them."""
    kv_cache_bytes_per_sequence: Floats
    usable_bytes: Floats
    """What weights, cache, workspace and context may fill of the device's memory."""
    kv_room_bytes: Floats
    """What they leave for keys and values; negative where the weights do not fit."""
    kv_tokens: Floats
    """Tokens of which that holds the keys and values of every layer (windows not counted, as engines log it)."""

    @property
    def peak_bytes(self) -> Floats:
        return self.param_bytes + self.kv_cache_bytes + self.workspace_bytes + self.context_bytes

    @property
    def fits(self) -> Bools:
        return self.peak_bytes <= self.usable_bytes

    @property
    def headroom(self) -> Floats:
        """Share of the usable memory that stays free; negative where the model does not fit."""
        return 1 - self.peak_bytes / self.usable_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How an inference pass is judged, besides its time."""

    memory: InferenceMemory
    would_fit: tuple[Mapping[str, int | str], ...]
    """If it does not fit: changes each of which makes it fit, best first."""
    most_sequences: int
    """Most sequences of this length that fit at once."""
    longest_tokens: int
    """Tokens of the longest sequence that fits alone."""
    bandwidth_utilization: float
    knee: int | None
    """For decoding: number of sequences from which GEMMs are compute-bound."""


def serving(
    estimate: Estimate,
    workload: Workload,
    dims: ParallelDims,
    calibration: Calibration | None,
    room: Room,
) -> Serving:
    """`Serving` of a priced inference pass in the room of its device."""
    memory = room.memory(workload, dims, estimate.graph)
    return Serving(
        memory=memory,
        would_fit=() if memory.fits else would_fit(workload, dims, room),
        most_sequences=most_sequences(workload, dims, room),
        longest_tokens=longest_sequence(workload, dims, float(memory.kv_room_bytes), room.page_tokens),
        bandwidth_utilization=_bandwidth_utilization(estimate),
        knee=_knee_sequences(workload, dims, estimate.device, calibration),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A device, and what divides its memory: a serving engine, or a share that stays free."""

    gpu: Gpu
    engine: Engine | None = None
    headroom: float = 0.0

    @property
    def page_tokens(self) -> int:
        """Tokens of a page of the cache."""
        return 1 if self.engine is None else self.engine.sizing.page_tokens

    def memory(self, workload: Workload, dims: ParallelDims, graph: OperatorGraph | None = None) -> InferenceMemory:
        """Memory of one inference pass; ``graph`` is that pass's graph if already lowered."""
        element = _cache_bytes(workload)
        tokens = round_up(workload.kv_len, self.page_tokens)
        cache = kv_cache_bytes(workload.shape, tokens, dims.tp, element, workload.seq_len) / dims.pp
        weights = weight_bytes(workload, dims)
        if self.engine is None:
            graph = lower(workload, dims) if graph is None else graph
            usable: Floats = (1 - self.headroom) * usable_of(self.gpu)
            workspace: Floats = _workspace(workload, graph, _wide(workload.dtype).bytes)
            context: Floats = context_bytes(TrainingPlan(dims=dims), self.gpu)
        else:
            usable, workspace, context = reserve(self.engine, workload, dims, self.gpu, weights)
        room = usable - weights - workspace - context
        return InferenceMemory(
            param_bytes=weights,
            kv_cache_bytes=cache * workload.microbatch_size,
            workspace_bytes=workspace,
            context_bytes=context,
            kv_cache_bytes_per_sequence=cache,
            usable_bytes=usable,
            kv_room_bytes=room,
            kv_tokens=_tokens_of(room, workload, dims, self.page_tokens),
        )

    def fits(self, workload: Workload, dims: ParallelDims, sequences: int) -> bool:
        """Whether so many sequences fit at once."""
        return bool(self.memory(replace(workload, microbatch_size=sequences), dims).fits)


def _cache_bytes(workload: Workload) -> float:
    return (workload.cache_dtype or _wide(workload.dtype)).bytes


def _tokens_of(room: Floats, workload: Workload, dims: ParallelDims, page_tokens: int) -> Floats:
    """Whole pages of tokens that the room holds with every attention layer in full; 0 where nothing grows."""
    per_token = token_bytes(workload.shape, dims.tp, _cache_bytes(workload)) / dims.pp
    pages = np.maximum(room, 0.0) // np.maximum(per_token * page_tokens, 1e-9)
    return np.where(np.greater(per_token, 0), pages * page_tokens, 0.0)


def longest_sequence(workload: Workload, dims: ParallelDims, room: float, page_tokens: int = 1) -> int:
    """Tokens of the longest sequence whose pages of keys and values fit in so many bytes; 0 where none does."""

    def cached(pages: int) -> float:
        tokens = pages * page_tokens
        return float(kv_cache_bytes(workload.shape, tokens, dims.tp, _cache_bytes(workload), tokens))

    return page_tokens * bisect_right(range(1, MOST_PAGES), room, key=cached)


MOST_PAGES = 1 << 32
"""Upper limit of the search for the longest sequence."""


def served_bytes(workload: Workload, dims: ParallelDims) -> Floats:
    """Bytes of weights, key/value cache and activations on one device of a chip with its own runtime."""
    element = _wide(workload.dtype).bytes
    cache = kv_cache_bytes(workload.shape, workload.kv_len, dims.tp, element, workload.seq_len)
    weights = weight_bytes(workload, dims)
    return weights + cache * workload.microbatch_size + _workspace(workload, lower(workload, dims), element)


def weight_bytes(workload: Workload, dims: ParallelDims) -> Floats:
    """Weight bytes of one device: matrices in layers in the workload's type or, where its checkpoint is quantized in
    part, in their own; tables, the head, norms and routers in at least 16 bits; with a traced model's buffers. What is
    not split (routers, latent attention's down projections, key/value heads fewer than the devices) is on each."""
    shape, wide = workload.shape, _wide(workload.dtype).bytes
    stored = workload.stored or StoredTypes(dtype=workload.dtype)
    counts = count_params(shape)
    embedding, head = 1.0 * counts.embedding, 0.0 if shape.tied_embeddings else 1.0 * counts.lm_head
    split = embedding * wide + head * max(stored.bytes_of(Role.LOGITS), 0.0)
    rest = 1.0 * counts.total - embedding - head
    whole: Floats = 0.0
    for stack in shape.stacks:
        if not stack.is_text:
            continue
        for run in stack.runs:
            for params, share, role in _linears(run.layer, stack.hidden_size, dims):
                number = 1.0 * run_sets(run) * params
                whole, rest = whole + number * share * stored.bytes_of(role), rest - number
    split += rest * wide + (0.0 if shape.traced is None else shape.traced.all_buffer_bytes)
    return (whole + split / dims.tp) / dims.pp


def _linears(layer: Layer, hidden_size: Ints, dims: ParallelDims) -> Iterator[tuple[Ints, Floats, Role]]:
    """Parameters of a layer's linear layers, the share of them on one device, and their role."""
    for mixer in layer.mixers:
        kv_heads = 1 if isinstance(mixer, StateSpaceMixer) else mixer.num_kv_heads
        yield from ((x.params, _share_of(x, dims.tp, kv_heads), x.role) for x in mixer.linears(hidden_size))
    for ffn in layer.all_ffns:
        yield from ((x.params, _share_of(x, dims.tp), x.role) for x in ffn.linears(hidden_size))
        if isinstance(ffn, MoeFfn):
            for x in ffn.expert_linears(hidden_size):
                role = Role.EXPERT_DOWN if x.split is Split.ROW else Role.EXPERT_UP
                yield x.params * ffn.num_experts, 1 / (1.0 * dims.tp * dims.ep), role


def _share_of(linear: Linear, tp: Ints, kv_heads: Ints = 1) -> Floats:
    if linear.split is Split.REPLICATED:
        return 1.0
    return ceil_div(kv_heads, tp) / kv_heads if linear.split is Split.KV_HEADS else 1 / (1.0 * tp)


def kv_cache_bytes(shape: TransformerShape, tokens: Ints, tp: Ints, element: float, encoded: Ints = 0) -> Floats:
    """One sequence's cache on one of ``tp`` devices: layers with a window keep the window, latent attention keeps the
    latent on every device, state-space layers keep a state of fixed size, cross-attention ``encoded`` tokens."""
    runs = (run for stack in shape.stacks if stack.is_text for run in stack.runs)
    mixers = ((float(run.count), mixer) for run in runs for mixer in run.layer.mixers)
    return sum(n * _cached(m, encoded if _crosses(m) else tokens, tp, element) for n, m in mixers)


def _crosses(mixer: AttentionMixer | LatentAttentionMixer | StateSpaceMixer) -> bool:
    return isinstance(mixer, AttentionMixer) and mixer.cross


def _cached(
    mixer: AttentionMixer | LatentAttentionMixer | StateSpaceMixer, tokens: Ints, tp: Ints, element: float
) -> Floats:
    if isinstance(mixer, StateSpaceMixer):
        state = float(mixer.inner_size) * float(mixer.state_size) * STATE_BYTES
        return (state + float(mixer.conv_channels) * mixer.conv_size * element) / tp
    cached = np.minimum(tokens, mixer.window) if mixer.window else tokens
    if isinstance(mixer, LatentAttentionMixer):
        return cached * _latent_bytes(mixer, element) + tokens * _index_bytes(mixer, element)
    if mixer.shares_kv or not (mixer.causal or mixer.cross):
        return 0.0
    pooled = tokens // mixer.pooled if mixer.pooled else 0
    width = float(mixer.head_dim) + (0.0 if mixer.shares_k_as_v else float(mixer.value_dim))
    kept = (cached + pooled) * ceil_div(mixer.num_kv_heads, tp) * width * element
    return kept + tokens * _index_bytes(mixer, element)


def _latent_bytes(mixer: LatentAttentionMixer, element: float) -> float:
    """One token's latent and rotary part. Where keys are chosen, an 8-bit latent has a scale per 128 elements and a
    16-bit rotary part (vLLM's ``fp8_ds_mla``)."""
    latent, rotary = float(mixer.kv_lora_rank), float(mixer.qk_rope_head_dim)
    if mixer.selection is None or element >= WIDE_BYTES:
        return (latent + rotary) * element
    return latent * element + SCALE_BYTES * latent / SCALED_ELEMENTS + rotary * WIDE_BYTES


def _index_bytes(mixer: AttentionMixer | LatentAttentionMixer, element: float) -> float:
    """One token's share of the indexer's keys, on every device: 8-bit vectors with an fp32 scale, or as wide as the
    cache."""
    index = mixer.selection
    if index is None or not index.heads:
        return 0.0
    return (index.head_dim + SCALE_BYTES if index.narrow else index.head_dim * element) / index.pool


SCALE_BYTES, SCALED_ELEMENTS = 4.0, 128


def token_bytes(shape: TransformerShape, tp: Ints, element: float) -> Floats:
    """Keys and values of one token in all layers of one device, those with a window in full."""
    runs = (run for stack in shape.stacks if stack.is_text for run in stack.runs)
    mixers = ((float(run.count), mixer) for run in runs for mixer in run.layer.mixers)
    growing = ((n, m) for n, m in mixers if not isinstance(m, StateSpaceMixer) and not _crosses(m))
    return sum(n * _cached(replace(m, window=0), MANY, tp, element) for n, m in growing) / MANY


def _workspace(workload: Workload, graph: OperatorGraph, element: float) -> Floats:
    """The residual stream with its copy before the norm, and the activations of the largest GEMM."""
    stream = 2.0 * workload.tokens * workload.shape.hidden_size * element
    gemms = (op for op in graph.operators if isinstance(op, Gemm))
    sizes = [op.batch * op.m * (op.n + op.k) * element for op in gemms]
    return stream + reduce(lambda peak, size: np.maximum(peak, size), sizes, np.zeros(()))


def _wide(dtype: DType) -> DType:
    """The type of what 8- and 4-bit serving keeps in 16 bits: tables, activations, the cache."""
    return dtype if dtype.bytes >= 2 else DType.BF16


# -- what would fit ------------------------------------------------------------------------------------------------


def most_sequences(workload: Workload, dims: ParallelDims, room: Room) -> int:
    """Sequences of this length that fit at once; 0 where not even one does."""
    memory = room.memory(workload, dims)
    each = float(memory.kv_cache_bytes_per_sequence)
    if room.engine is not None:
        return int(np.clip(float(memory.kv_room_bytes) // max(each, 1.0), 0, MANY))
    low, high = 0, 1
    while high < MANY and room.fits(workload, dims, high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if room.fits(workload, dims, middle) else (low, middle)
    return low


def would_fit(workload: Workload, dims: ParallelDims, room: Room) -> tuple[Mapping[str, int | str], ...]:
    """Changes with which a pass fits: the fewest devices that hold it as it is; else the split that holds most
    sequences per device, with that many sequences; and the most sequences that fit with the current split."""
    sequences, most = int(workload.microbatch_size), most_sequences(workload, dims, room)
    fewer: list[Mapping[str, int | str]] = [{"microbatch_size": most}] if most else []
    wider = [("tp", n) for n in WIDTHS if n > int(dims.tp)]
    wider += [("ep", n) for n in WIDTHS if n > int(dims.ep) and workload.shape.moe_ffn is not None]
    splits = [(name, n, replace(dims, tp=n) if name == "tp" else replace(dims, ep=n)) for name, n in wider]
    splits = [option for option in splits if feasible(workload.shape, option[2])]
    whole = next(((name, n) for name, n, split in splits if room.fits(workload, split, sequences)), None)
    if whole is not None:
        return (dict([whole]), *fewer)
    rooms = {(name, n): most_sequences(workload, split, room) for name, n, split in splits}
    best = max(rooms, key=lambda split_name: rooms[split_name] / split_name[1], default=("tp", 0))
    if best[1] and rooms[best] / best[1] > most / int(dims.tp):
        return ({best[0]: best[1], "microbatch_size": rooms[best]}, *fewer)
    return tuple(fewer)


# -- serving metrics -----------------------------------------------------------------------------------------------


def _bandwidth_utilization(estimate: Estimate) -> float:
    """Bytes that the operators move per second, over the peak bandwidth (above 1 if the L2 cache keeps some of
    them)."""
    operators = (op for op in estimate.graph.operators if not isinstance(op, Collective))
    moved = sum(float(op.bytes_moved) * float(op.count) for op in operators)
    return moved / float(estimate.time_s) / estimate.device.hbm_bytes_per_s


def _knee_sequences(
    workload: Workload, dims: ParallelDims, gpu: Gpu, calibration: Calibration | None = None
) -> int | None:
    """The sequences from which on doubling them lengthens decoding's GEMMs by half or more; below, they wait for
    weights, for experts not yet read, or for launches, and further sequences are almost free. None if that is beyond
    16,384 sequences."""
    if workload.phase is not Phase.DECODE or workload.shape.traced is not None:
        return None
    batch = distinct(np.geomspace(1, 32768, 121).round().astype(np.int64))
    graph = lower(replace(workload, microbatch_size=batch), dims)
    gemms = tuple(op for op in graph.operators if isinstance(op, (Gemm, GroupedGemm)))
    costs = price(OperatorGraph(operators=gemms), gpu, calibration).costs
    time = sum((np.asarray(c.time_s) * op.count for op, c in zip(gemms, costs, strict=True)), np.zeros(batch.size))
    once = batch[batch <= batch[-1] // 2]
    doubled = np.exp(np.interp(np.log(2 * once), np.log(batch), np.log(time)))
    free = np.flatnonzero(doubled < 1.5 * time[: once.size])
    knee = int(free[-1]) + 1 if free.size else 0
    return int(once[knee]) if knee < once.size else None


# -- what an engine keeps ---------------------------------------------------------------------------------------------

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
