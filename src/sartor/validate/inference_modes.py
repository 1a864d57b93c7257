"""One row of an inference table: the interpretation of its mode, the passes it ran, and their predicted time.

Modes and columns: data/end_to_end/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.gpu.rates import as_run, peak_flops_per_s
from sartor.cost.price import Estimate, price
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.model.counts import count_params
from sartor.model.lower import lower
from sartor.model.lower.setting import Kernels
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, ParallelDims, Phase, Workload
from sartor.operators import (
    Attention,
    Axis,
    Collective,
    CollectiveKind,
    DType,
    Gemm,
    GroupedGemm,
    Operator,
    OperatorGraph,
    Part,
    Role,
)
from sartor.records.rows import Unexpressed
from sartor.records.targets import known
from sartor.units import Floats
from sartor.validate.row_shapes import shape_of

ASSUMED = {
    "prefill_forward": "one pass over batch x isl tokens; a framework named PyTorch or transformers runs attention as "
    "GEMMs and a softmax and every elementwise step as a kernel of its own, and in fp32 attention is never fused",
    "decode_batch1": "one step in the middle of the generation: context isl + osl / 2",
    "layer_prefill": "one layer, no embedding or head, run as prefill_forward",
    "layer_decode": "as layer_prefill, at the end of the generation: context isl + osl",
    "offline_max_throughput": "batch as large as memory allows (0.9 of it, less weights; keys and values of isl + osl "
    "tokens, kept and read in 8 bits where weights are narrower than 16), at most 2048 a device; every sequence is "
    "prefilled once and then decodes osl steps at context isl + osl / 2; tensor parallel over tp devices, or, with "
    "experts and unless attention_dp says which, every device with sequences of its own and a share of the experts, "
    "whichever is faster; a pipeline has a batch in each of its equal stages and is as fast as the last; steps that "
    "also carry a prompt (as often as sequences begin) are launched from the host, no faster than 50 us a kernel, the "
    "others replayed from a graph; no time between steps",
}
"""How each mode is interpreted."""

HOST_KERNEL_S = 5e-5
"""Host time per kernel of a PyTorch step that is not replayed from a graph: 47 to 53 us for GELU and layer norm on A100
(data/measured/memory_bound.parquet, PrincetonUniversity/LLMCompass; 2026-11-21), not fitted to inference."""

MODE_LOG_SIGMA = {"offline_max_throughput": 0.23, "prefill_forward": 0.14}
"""Standard deviation of ln(measured / predicted) that a mode's interpretation adds to a pass (other modes:
``STEP_LOG_SIGMA``): with it the interval covers 80% of the development rows. Fitted without the rows of one GPU or
model at a time, it covers 77 to 81% of those (data/end_to_end, 2026-11-21)."""

STEP_LOG_SIGMA = 0.04
"""The same for one decoding step, from the rows of one GPU and one GCD."""

CHUNK = 8192
"""Prompt tokens that an engine processes in one step (TensorRT-LLM's and vLLM's default)."""

MEMORY_SHARE = 0.9
"""Share of a device's memory that a server fills (TensorRT-LLM's and vLLM's default)."""

MAX_BATCH = 2048
"""TensorRT-LLM's default for the largest number of concurrent sequences."""


IMPOSSIBLE = 2.0
"""A row this many times faster than its roofline has another unit (no published row is faster than its roofline)."""

TOO_FAST = (
    f"faster than {IMPOSSIBLE:g} x what the datasheet allows: are times in milliseconds, rates in tokens a second?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRow:
    """Result for one row; ``reason`` says why there is no prediction."""

    words: Mapping[str, str]
    measured_s: float = float("nan")
    """Seconds of a pass or step; for throughput, seconds per output token of all devices together."""
    predicted_s: float = float("nan")
    log_sigma: float = float("nan")
    roofline_s: float = float("nan")
    source: str = ""
    batch: int = 0
    calibration: str = ""
    """Source of the coefficients that its GEMMs were priced with."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Share of the predicted time by kind of operator, and of waiting for the host."""
    reason: str = ""
    bracket: bool = False
    """Whether the interval spans answers of a setting that the row does not state, and its middle is no prediction."""

    @property
    def ratio(self) -> float:
        return self.predicted_s / self.measured_s


def outcome(row: Mapping[str, str]) -> InferenceRow:
    try:
        return _predict(row)
    except Unexpressed as why:
        return InferenceRow(words=row, reason=str(why))
    except InputError as why:
        return InferenceRow(words=row, reason=f"{why.field}: {why.must}")


DTYPES = {
    "bf16": DType.BF16,
    "fp16": DType.FP16,
    "fp32": DType.FP32,
    "fp8": DType.FP8,
    "fp4": DType.NVFP4,
    "nvfp4": DType.NVFP4,
    "int8": DType.INT8_WO,
    "int4": DType.INT4_WO,
}
"""``int8`` and ``int4`` in the collection are weight-only (gpt-fast); int8 GEMMs have another name."""


def _predict(row: Mapping[str, str]) -> InferenceRow:
    mode = row["mode"]
    if mode not in _MODES:
        serves = "; `sartor validate serving` reads it" if mode.startswith("serving_") else ""
        raise Unexpressed(f"mode {mode[:30]}: must be one of {', '.join(_MODES)}{serves}")
    dtype = DTYPES.get(row["weight_dtype"].lower())
    if dtype is None:
        raise Unexpressed(f"weight_dtype {row['weight_dtype'][:20]}: not one of {', '.join(DTYPES)}")
    gpu = known(row["gpu"])
    dtype = as_run(dtype, gpu)
    if whole_of(row, "tp", 1) < 1:
        raise Unexpressed("tp is below 1")
    if whole_of(row, "pp", 1) < 1:
        raise Unexpressed("pp is below 1")
    row_outcome: InferenceRow = _MODES[mode](row, gpu, dtype, shape_of(row))
    if row_outcome.measured_s * IMPOSSIBLE < row_outcome.roofline_s:
        raise Unexpressed(TOO_FAST)
    return replace(row_outcome, calibration=load_calibration(gpu).owner(f"gemm.{dtype.value}"))


def _workload(row: Mapping[str, str], shape: TransformerShape, phase: Phase, dtype: DType, **sizes: Any) -> Workload:
    unfused = dtype is DType.FP32 or _is_eager(row)
    kernel = AttentionKernel.UNFUSED if unfused else AttentionKernel.FLASH
    return Workload(shape=shape, phase=phase, dtype=dtype, attention_kernel=kernel, **sizes)


def _estimate(
    workload: Workload, row: Mapping[str, str], gpu: Gpu, dims: ParallelDims | None = None, *, whole: bool = True
) -> Estimate:
    """One pass on one device of the group, tensor parallel unless ``dims`` differs; pipeline stages in sequence."""
    stages = whole_of(row, "pp", 1)
    graph = _graph(workload, row, dims or ParallelDims(tp=whole_of(row, "tp", 1), pp=stages))
    if stages > 1:
        graph = replace(graph, operators=(*graph.operators, _handed_on(graph, workload, stages - 1)))
    return _priced(graph if whole else _only(graph, layers=True), gpu, workload.dtype)


def _is_eager(row: Mapping[str, str]) -> bool:
    """Whether the row's framework is plain PyTorch: no serving engine, and no compiler in its name or note."""
    name = row.get("framework", "").lower()
    compiled = "compile" in name + row.get("note", "").lower()
    return name.startswith(("pytorch", "hugging", "transformers")) and not compiled


def _graph(workload: Workload, row: Mapping[str, str], dims: ParallelDims) -> OperatorGraph:
    graph = lower(workload, dims, Kernels(fused=not _is_eager(row)))
    if row["mode"] != "offline_max_throughput":
        return graph
    return replace(graph, operators=tuple(_served(op, workload) for op in graph.operators))


def _only(graph: OperatorGraph, *, layers: bool) -> OperatorGraph:
    """The operators of a graph's layers, or those outside its layers."""
    chosen = tuple(op for op in graph.operators if (op.part is Part.LAYER) == layers)
    return OperatorGraph(operators=chosen, tokens=graph.tokens)


def _priced(graph: OperatorGraph, gpu: Gpu, dtype: DType) -> Estimate:
    """Price at the boost clock, for short runs."""
    return price(graph, gpu, load_calibration(gpu), clock=Clock.BOOST, details=False)


def _stage(workload: Workload, row: Mapping[str, str], gpu: Gpu, dims: ParallelDims) -> list[tuple[Estimate, float]]:
    """The slowest stage of a pipeline: the last, with its share of the layers (rounded up), the head, and the transfer
    from the previous stage; the whole model if there is one stage."""
    graph, stages = _graph(workload, row, dims), int(dims.pp)
    if stages == 1:
        return [(_priced(graph, gpu, workload.dtype), 1.0)]
    around = _only(graph, layers=False)
    around = replace(around, operators=(*around.operators, _handed_on(graph, workload, 1)))
    layers = int(workload.shape.num_layers)
    share = math.ceil(layers / stages) / layers
    return [
        (_priced(_only(graph, layers=True), gpu, workload.dtype), share),
        (_priced(around, gpu, workload.dtype), 1.0),
    ]


def _handed_on(graph: OperatorGraph, workload: Workload, count: int) -> Collective:
    """Transfer from one pipeline stage to the next: activations of its tokens in 16 bits."""
    return Collective(
        name="to_the_next_stage",
        kind=CollectiveKind.SEND_RECV,
        group_size=2,
        message_bytes=float(graph.tokens) * int(workload.shape.hidden_size) * 2,
        count=count,
        axis=Axis.PIPELINE,
        part=Part.HEAD,
    )


def _cache_dtype(weights: DType) -> DType:
    """Type of the key/value cache of a server at full load (``ASSUMED``)."""
    return DType.FP8 if weights.bytes < 2 else weights


def _served(op: Operator, workload: Workload) -> Operator:
    """The operator in a server at full load: keys and values are read in the cache's type, and tokens are gathered and
    summed once over all devices if that moves less than sending them to every chosen expert."""
    if isinstance(op, Attention) and workload.phase is Phase.DECODE:
        return replace(op, kv_dtype=_cache_dtype(workload.dtype))
    if isinstance(op, Collective) and op.kind is CollectiveKind.ALL_TO_ALL:
        moe = workload.shape.moe_ffn
        once = op.message_bytes * op.group_size / int(moe.experts_per_token) if moe else op.message_bytes
        kind = CollectiveKind.ALL_GATHER if op.role is Role.DISPATCH else CollectiveKind.REDUCE_SCATTER
        return replace(op, kind=kind, message_bytes=once) if once < op.message_bytes else op
    return op


def _done(
    row: Mapping[str, str],
    measured_s: float,
    weighted: Sequence[tuple[Estimate, float]],
    batch: int,
    per: float = 1.0,
    waits_s: float = 0.0,
) -> InferenceRow:
    """A row with a time that is a weighted sum of passes and host waits, divided by ``per``."""
    time_s = (sum(float(estimate.time_s) * weight for estimate, weight in weighted) + waits_s) / per
    spread = sum(float(estimate.time_s * estimate.log_sigma) * weight for estimate, weight in weighted) / per
    return InferenceRow(
        words=row,
        measured_s=measured_s,
        predicted_s=time_s,
        log_sigma=math.hypot(spread / time_s, MODE_LOG_SIGMA.get(row["mode"], STEP_LOG_SIGMA)),
        roofline_s=sum(float(roofline_s(estimate)) * weight for estimate, weight in weighted) / per,
        source=weighted[0][0].source.value,
        batch=batch,
        parts=_parts(weighted, waits_s),
    )


def _parts(weighted: Sequence[tuple[Estimate, float]], waits_s: float) -> dict[str, float]:
    """Shares of the time by kind of operator, largest first."""
    parts = {"waiting for the host": waits_s}
    for estimate, weight in weighted:
        for op, cost in zip(estimate.graph.operators, estimate.costs, strict=True):
            kind = _PARTS.get(type(op), "other kernels")
            parts[kind] = parts.get(kind, 0.0) + float(cost.time_s * op.count) * weight
    total = sum(parts.values())
    return {kind: parts[kind] / total for kind in sorted(parts, key=lambda kind: -parts[kind]) if parts[kind] > 0}


_PARTS = {Gemm: "products", GroupedGemm: "experts", Attention: "attention", Collective: "collectives"}


def roofline_s(estimate: Estimate) -> Floats:
    """Seconds of a pass at datasheet rates."""
    total: Floats = 0.0
    for op in estimate.graph.operators:
        compute = op.flops / peak_flops_per_s(estimate.device, op.dtype) if isinstance(op, (Gemm, GroupedGemm)) else 0.0
        total = total + np.maximum(compute, op.bytes_moved / estimate.device.hbm_bytes_per_s) * op.count
    return total


def _prefill(row: Mapping[str, str], gpu: Gpu, dtype: DType, shape: TransformerShape) -> InferenceRow:
    batch = whole_of(row, "batch", 1)
    workload = _workload(row, shape, Phase.PREFILL, dtype, microbatch_size=batch, seq_len=whole_of(row, "isl"))
    estimate = _estimate(workload, row, gpu, whole=not row["mode"].startswith("layer"))
    return _done(row, _measured_ms(row, "latency_ms", "ttft_ms"), [(estimate, 1.0)], batch)


def _decode(row: Mapping[str, str], gpu: Gpu, dtype: DType, shape: TransformerShape) -> InferenceRow:
    batch, layer = whole_of(row, "batch", 1), row["mode"].startswith("layer")
    out = whole_of(row, "osl", 0)
    context = whole_of(row, "isl", 0) + (out if layer else out // 2)
    workload = _workload(row, shape, Phase.DECODE, dtype, microbatch_size=batch, context_len=context)
    estimate = _estimate(workload, row, gpu, whole=not layer)
    return _done(row, _measured_ms(row, "tpot_ms", "latency_ms"), [(estimate, 1.0)], batch)


def _measured_ms(row: Mapping[str, str], *names: str) -> float:
    for name in names:
        if row.get(name, "") != "" and number_of(row, name) > 0:
            return number_of(row, name) / 1e3
    raise Unexpressed(f"none of {', '.join(names)} is given")


def _throughput(row: Mapping[str, str], gpu: Gpu, dtype: DType, shape: TransformerShape) -> InferenceRow:
    """Seconds per output token of the whole group, with the faster of the allowed ways to spread it over devices."""
    if whole_of(row, "osl") < 1 or number_of(row, "output_tokens_per_s") <= 0:
        raise Unexpressed("osl or output_tokens_per_s is not above 0")
    outcomes = [_at_full_load(row, gpu, dtype, shape, dims) for dims in _ways(row, shape)]
    return min(outcomes, key=lambda row_outcome: row_outcome.predicted_s)


def _ways(row: Mapping[str, str], shape: TransformerShape) -> list[ParallelDims]:
    """Ways to spread the model: heads and experts split over the group, or each device with its own sequences and a
    share of the experts; the one that ``attention_dp`` specifies, else both."""
    tp = whole_of(row, "tp", 1)
    pp = whole_of(row, "pp", 1)
    split, apart = ParallelDims(tp=tp, pp=pp), ParallelDims(ep=tp, pp=pp)
    if tp == 1 or shape.moe_ffn is None or int(shape.moe_ffn.num_experts) % tp:
        return [split]
    attention_dp = row.get("attention_dp", "").lower()
    if attention_dp not in _ATTENTION_DP:
        raise Unexpressed(f"attention_dp {attention_dp[:20]}: must be 0 or 1")
    return [dims for dims in (split, apart) if _ATTENTION_DP[attention_dp] in (None, dims is apart)]


_ATTENTION_DP: Mapping[str, bool | None] = {
    "": None, "0": False, "false": False, "no": False, "1": True, "true": True, "yes": True,
}  # fmt: skip


def _at_full_load(
    row: Mapping[str, str], gpu: Gpu, dtype: DType, shape: TransformerShape, dims: ParallelDims
) -> InferenceRow:
    """Each sequence costs one prefill and ``osl`` shares of a step, on all devices of the group or on its own. A
    pipeline has a batch in every stage: each step of the slowest stage yields a token for one of them."""
    isl, osl = whole_of(row, "isl"), whole_of(row, "osl")
    batch_held, groups = _largest_batch(gpu, dtype, shape, isl + osl, dims), int(dims.ep)
    batch = max(1, batch_held // int(dims.pp))
    together = max(1, min(batch, CHUNK // max(isl, 1)))
    step = _workload(row, shape, Phase.DECODE, dtype, microbatch_size=batch, context_len=isl + osl // 2)
    fill = _workload(row, shape, Phase.PREFILL, dtype, microbatch_size=together, seq_len=max(isl, 1))
    steps, fills = _stage(step, row, gpu, dims), _stage(fill, row, gpu, dims)
    waits = osl / batch * _host_wait_s(steps, fills, batch / osl / together, batch / osl * max(1, isl / CHUNK))
    weighted = [(estimate, osl / batch * share) for estimate, share in steps] + [
        (estimate, share / together) for estimate, share in fills
    ]
    return _done(
        row, 1 / number_of(row, "output_tokens_per_s"), weighted, batch_held * groups, per=osl * groups, waits_s=waits
    )


def _host_wait_s(
    steps: Sequence[tuple[Estimate, float]],
    fills: Sequence[tuple[Estimate, float]],
    fills_per_step: float,
    prompts_per_step: float,
) -> float:
    """Seconds per mean step that the device waits for the host: steps with a prompt (Poisson) are launched kernel by
    kernel."""
    kernels = sum(share * _kernels(estimate.graph) for estimate, share in steps)
    carrying = 1 - math.exp(-prompts_per_step)
    busy = carrying * _seconds(steps) + fills_per_step * _seconds(fills)
    return max(carrying * kernels * HOST_KERNEL_S - busy, 0.0)


def _kernels(graph: OperatorGraph) -> float:
    return sum(float(op.count) * float(getattr(op, "kernels", 1)) for op in graph.operators)


def _seconds(weighted: Sequence[tuple[Estimate, float]]) -> float:
    return sum(float(estimate.time_s) * share for estimate, share in weighted)


def _largest_batch(gpu: Gpu, dtype: DType, shape: TransformerShape, length: int, dims: ParallelDims) -> int:
    """Sequences of one device (or of a group that splits heads and layers) whose keys and values fit besides the
    weights, limited per stage to what an engine processes at once."""
    tp, pp = int(dims.tp), int(dims.pp)
    counted = count_params(shape)
    shared_out = int(counted.routed_expert)
    weights = (float(counted.total - shared_out) / tp + shared_out / int(dims.ep * dims.tp)) * dtype.bytes / pp
    element = _cache_dtype(dtype).bytes
    attention = shape.attention
    if attention is None or not hasattr(attention, "num_kv_heads"):
        raise Unexpressed("attention whose cache size is not heads x head_dim")
    heads = max(1, math.ceil(int(attention.num_kv_heads) / tp))
    per_token = 2 * math.ceil(int(shape.num_layers) / pp) * heads * int(attention.head_dim) * element
    free = MEMORY_SHARE * gpu.hbm_bytes - weights
    batch = int(free // (per_token * length))
    if batch < 1:
        raise Unexpressed("weights and one sequence do not fit in memory")
    return min(batch, MAX_BATCH * pp)


_MODES: JsonMap = {
    "prefill_forward": _prefill,
    "layer_prefill": _prefill,
    "decode_batch1": _decode,
    "layer_decode": _decode,
    "offline_max_throughput": _throughput,
}


def number_of(row: Mapping[str, str], name: str, default: float | None = None) -> float:
    text = row.get(name, "")
    if text == "" and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        raise Unexpressed(f"{name} is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise Unexpressed(f"{name} is not a number of at least 0")
    return value


def whole_of(row: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = number_of(row, name, default)
    if value != int(value) or value > 2**40:
        raise Unexpressed(f"{name} is not a whole number")
    return int(value)
