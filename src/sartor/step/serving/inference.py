"""Memory of a device that serves a model: weights, key/value cache, activations; and what would fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from sartor.cost.correction.calibration import Calibration
from sartor.cost.price import Estimate, price
from sartor.hardware.gpu import Gpu
from sartor.model.counts import count_params
from sartor.model.layer import AttentionMixer, LatentAttentionMixer, StateSpaceMixer
from sartor.model.lower import lower
from sartor.model.lower.setting import ATTENTION, feasible
from sartor.model.shape import TransformerShape
from sartor.model.training import TrainingPlan
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.operators import Collective, DType, Gemm, GroupedGemm, OperatorGraph
from sartor.step.footprint import usable_of
from sartor.step.states import context_bytes
from sartor.units import Bools, Floats, Ints, ceil_div, distinct

WIDTHS = (1, 2, 4, 8, 16, 32, 64)
"""Tensor-parallel degrees tried for a model that does not fit."""

MANY = 1 << 20
"""Upper limit of the search for how many sequences fit."""

STATE_BYTES = 4.0
"""Per element of a state-space layer's state, which is kept in fp32 (Mamba-2's released inference code)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _InferenceMemory:
    """Bytes of one device of a tensor- and expert-parallel group that serves a model."""

    param_bytes: Floats
    kv_cache_bytes: Floats
    """Keys and values of all sequences: their context and the new tokens."""
    workspace_bytes: Floats
    """The residual stream, and the inputs and outputs of the largest operator."""
    context_bytes: Floats
    """CUDA context, libraries, NCCL's buffers."""
    kv_cache_bytes_per_sequence: Floats
    usable_bytes: float
    """What a process can fill of the device's memory."""

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

    memory: _InferenceMemory
    would_fit: tuple[Mapping[str, int | str], ...]
    """If it does not fit: changes each of which makes it fit, best first."""
    most_sequences: int
    """Most sequences of this length that fit at once."""
    bandwidth_utilization: float
    knee: int | None
    """For decoding: number of sequences from which GEMMs are compute-bound."""


def serving(
    estimate: Estimate, workload: Workload, dims: ParallelDims, calibration: Calibration | None, headroom: float = 0.0
) -> Serving:
    """`Serving` of a priced inference pass; ``headroom`` is the share of memory to leave free."""
    gpu = estimate.device
    memory = inference_memory(workload, dims, gpu, estimate.graph, headroom)
    return Serving(
        memory=memory,
        would_fit=() if memory.fits else would_fit(workload, dims, gpu, headroom),
        most_sequences=most_sequences(workload, dims, gpu, headroom),
        bandwidth_utilization=_bandwidth_utilization(estimate),
        knee=_knee_sequences(workload, dims, gpu, calibration),
    )


def inference_memory(
    workload: Workload, dims: ParallelDims, gpu: Gpu, graph: OperatorGraph | None = None, headroom: float = 0.0
) -> _InferenceMemory:
    """Memory of one inference pass; ``graph`` is that pass's graph if already lowered."""
    graph = lower(workload, dims) if graph is None else graph
    element, cache_element = _wide(workload.dtype).bytes, (workload.cache_dtype or _wide(workload.dtype)).bytes
    cache = kv_cache_bytes(workload.shape, workload.kv_len, dims.tp, cache_element, workload.seq_len) / dims.pp
    return _InferenceMemory(
        param_bytes=weight_bytes(workload, dims),
        kv_cache_bytes=cache * workload.microbatch_size,
        workspace_bytes=_workspace(workload, graph, element),
        context_bytes=context_bytes(TrainingPlan(dims=dims), gpu),
        kv_cache_bytes_per_sequence=cache,
        usable_bytes=(1 - headroom) * usable_of(gpu),
    )


def served_bytes(workload: Workload, dims: ParallelDims) -> Floats:
    """Bytes of weights, key/value cache and activations on one device of a chip with its own runtime."""
    element = _wide(workload.dtype).bytes
    cache = kv_cache_bytes(workload.shape, workload.kv_len, dims.tp, element, workload.seq_len)
    weights = weight_bytes(workload, dims)
    return weights + cache * workload.microbatch_size + _workspace(workload, lower(workload, dims), element)


def weight_bytes(workload: Workload, dims: ParallelDims) -> Floats:
    """Weight bytes of one device: matrices in layers in the workload's type, tables and the head in at least 16 bits,
    and attention's where the workload says so; with a traced model's buffers."""
    shape, dtype = workload.shape, workload.dtype
    counts = count_params(shape)
    tables = 1.0 * counts.embedding + (0.0 if shape.tied_embeddings else 1.0 * counts.lm_head)
    experts = 1.0 * counts.routed_expert
    dense = 1.0 * counts.total - tables - experts
    of_group = tables * _wide(dtype).bytes + dense * dtype.bytes + experts * dtype.bytes / dims.ep
    of_group += (_wide(dtype).bytes - dtype.bytes) * _attention_weights(shape) if workload.wide_attention else 0.0
    of_group += 0.0 if shape.traced is None else shape.traced.all_buffer_bytes
    return of_group / (dims.tp * dims.pp)


def _attention_weights(shape: TransformerShape) -> Floats:
    """Elements of the linear layers of attention."""
    widths = ((run, stack.hidden_size) for stack in shape.stacks if stack.is_text for run in stack.runs)
    linears = ((float(run.count), x) for run, h in widths for mixer in run.layer.mixers for x in mixer.linears(h))
    return sum(n * linear.params for n, linear in linears if linear.role in ATTENTION)


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
        return cached * float(mixer.kv_lora_rank + mixer.qk_rope_head_dim) * element
    if mixer.shares_kv or not (mixer.causal or mixer.cross):
        return 0.0
    pooled = tokens // mixer.pooled if mixer.pooled else 0
    width = float(mixer.head_dim) + (0.0 if mixer.shares_k_as_v else float(mixer.value_dim))
    return (cached + pooled) * ceil_div(mixer.num_kv_heads, tp) * width * element


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


def most_sequences(workload: Workload, dims: ParallelDims, gpu: Gpu, headroom: float = 0.0) -> int:
    """Sequences of this length that fit at once; 0 where not even one does."""
    low, high = 0, 1
    while high < MANY and _fits(workload, dims, gpu, high, headroom):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(workload, dims, gpu, middle, headroom) else (low, middle)
    return low


def would_fit(
    workload: Workload, dims: ParallelDims, gpu: Gpu, headroom: float = 0.0
) -> tuple[Mapping[str, int | str], ...]:
    """Changes with which a pass fits: the fewest devices that hold it as it is; else the split that holds most
    sequences per device, with that many sequences; and the most sequences that fit with the current split."""
    sequences, room = int(workload.microbatch_size), most_sequences(workload, dims, gpu, headroom)
    fewer: list[Mapping[str, int | str]] = [{"microbatch_size": room}] if room else []
    wider = [("tp", n) for n in WIDTHS if n > int(dims.tp)]
    wider += [("ep", n) for n in WIDTHS if n > int(dims.ep) and workload.shape.moe_ffn is not None]
    splits = [(name, n, replace(dims, tp=n) if name == "tp" else replace(dims, ep=n)) for name, n in wider]
    splits = [option for option in splits if feasible(workload.shape, option[2])]
    whole = next(((name, n) for name, n, split in splits if _fits(workload, split, gpu, sequences, headroom)), None)
    if whole is not None:
        return (dict([whole]), *fewer)
    rooms = {(name, n): most_sequences(workload, split, gpu, headroom) for name, n, split in splits}
    best = max(rooms, key=lambda split_name: rooms[split_name] / split_name[1], default=("tp", 0))
    if best[1] and rooms[best] / best[1] > room / int(dims.tp):
        return ({best[0]: best[1], "microbatch_size": rooms[best]}, *fewer)
    return tuple(fewer)


def _fits(workload: Workload, dims: ParallelDims, gpu: Gpu, sequences: int, headroom: float) -> bool:
    return bool(inference_memory(replace(workload, microbatch_size=sequences), dims, gpu, headroom=headroom).fits)


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
