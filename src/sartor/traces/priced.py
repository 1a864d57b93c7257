"""Kernels of a trace as operators, with the predicted time of matrix multiplications, attention and collectives."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sartor.cost.collective.collective import collective_cost
from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.cost import Cost
from sartor.cost.price import operator_costs
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.gpu import Gpu, alignment_of
from sartor.json_types import JsonDict
from sartor.operators import Attention, Collective, CollectiveKind, DType, Gemm, Pass
from sartor.step.measured_run import JobKind, PricedKernels
from sartor.traces.kernel_trace import ENGINE_STEP, KINDS, HostOperator, KernelKind, KernelTrace
from sartor.traces.patterns import BATCHED, UnfusedAttention
from sartor.traces.timeline import TraceTimeline
from sartor.units import BoolArray, FloatArray, IntArray, round_up

EAGER_S = 3.5e-6
"""A kernel launched alone takes about this long however small it is (tables are measured in loops, where kernels
overlap). Fitted to three shapes of 5 to 6 us in a vLLM trace of a B200 (2026-11-23); on a MI300X trace not used for the
fit, the median ratio is 1.01 with it and 1.24 without."""
SMALL = 64
"""Padding is not suggested for sizes up to this."""
DTYPES = {
    "BFloat16": DType.BF16,
    "Half": DType.FP16,
    "float": DType.FP32,
    "Float": DType.FP32,
    "Float8_e4m3fn": DType.FP8,
    "Float8_e4m3fnuz": DType.FP8,
    "Float8_e5m2": DType.FP8,
}
OF_KERNEL = (
    (DType.MXFP8, r"(?i:mxe4m3|mxe5m2|mxfp8)"),
    (DType.MXFP4, r"(?i:mxe2m1|mxfp4)"),
    (DType.NVFP4, r"(?i:e2m1|nvfp4)"),
    (DType.FP8, r"(?i:e4m3|e5m2)|qqtst|float8|fp8"),
    (DType.BF16, r"bf16|bfloat16|nvjet_(?:sm\d+_)?tst|nvjet_(?:sm\d+_)?tss|BBS|_bf16_"),
    (DType.FP16, r"fp16|half|h1688|h16816|hgemm|f16_|_f16|nvjet_(?:sm\d+_)?hsh|HHS"),
    (DType.TF32, r"tf32"),
    (DType.FP32, r"sgemm|f32|float"),
)
"""Marks of data types in the names of cuBLAS, CUTLASS, hipBLASLt and FlashAttention kernels."""
NARROW_TYPES = (DType.MXFP8, DType.MXFP4, DType.NVFP4, DType.FP8)
"""A kernel of these may convert its operator's wider inputs first."""
WIDTHS = {"BFloat16": 2, "Half": 2, "Float": 4, "float": 4, "Double": 8, "Long": 8, "Int": 4, "Byte": 1, "Char": 1}


def priced_kernels(
    trace: KernelTrace,
    kinds: IntArray,
    line: TraceTimeline,
    again: BoolArray,
    in_attention: BoolArray,
    gpu: Gpu,
    calibration: Calibration | None,
) -> tuple[PricedKernels, ...]:
    """The matrix multiplications and attention of a span whose sizes the trace records, longest total first."""
    is_priced = np.isin(kinds, [KINDS.index(KernelKind.MATMUL), KINDS.index(KernelKind.ATTENTION)]) & ~again
    seconds: dict[tuple[Gemm | Attention, bool], float] = defaultdict(float)
    counts: Counter[tuple[Gemm | Attention, bool]] = Counter()
    operator_of: dict[int, Gemm | Attention | None] = {}
    seen: set[int] = set()
    for i in np.flatnonzero(is_priced & (line.owned_s > 0)):
        number = int(trace.operator[i])
        if number not in operator_of:
            name = trace.names[int(trace.name[i])]
            operator_of[number] = _operator(trace.operators[number], name, gpu) if number >= 0 else None
        operator = operator_of[number]
        if operator is not None:
            key = operator, bool(in_attention[i])
            seconds[key] += float(line.owned_s[i])
            counts[key] += number not in seen  # one operator may launch several kernels
            seen.add(number)
    others = {
        key: _padded(op, gpu) if isinstance(op, Gemm) and not inside else (op, "")
        for key in seconds
        for op, inside in [key]
    }
    costs = _costs([*(op for op, _ in seconds), *(padded for padded, _ in others.values())], gpu, calibration)
    priced = [
        PricedKernels(
            operator=key[0],
            seconds=seconds[key],
            predicted_s=counts[key] * math.hypot(float(cost.time_s), EAGER_S),
            padded_s=counts[key] * math.hypot(float(better.time_s), EAGER_S),
            unfilled_s=counts[key] * _unfilled_s(cost),
            log_sigma=float(cost.log_sigma),
            source=cost.source,
            padded=others[key][1],
            count=counts[key],
            in_attention=key[1],
        )
        for key, cost, better in zip(seconds, costs, costs[len(seconds) :], strict=False)
        if cost is not None and better is not None and float(cost.time_s) > 0
    ]
    return tuple(sorted(priced, key=lambda op: -op.seconds))


def fused_seconds(
    trace: KernelTrace, patterns: Sequence[UnfusedAttention], gpu: Gpu, calibration: Calibration | None
) -> FloatArray:
    """Predicted seconds of a fused kernel in place of each pattern; NaN where its sizes are not known."""
    fused = [_fused(trace, pattern, gpu) for pattern in patterns]
    distinct = list({operator for operator in fused if operator is not None})
    costs = dict(zip(distinct, _costs(distinct, gpu, calibration), strict=True))
    predicted = [costs[operator] if operator is not None else None for operator in fused]
    return np.array([math.nan if cost is None else math.hypot(float(cost.time_s), EAGER_S) for cost in predicted])


def _fused(trace: KernelTrace, pattern: UnfusedAttention, gpu: Gpu) -> Attention | None:
    """The attention that a pattern does; without a mask, as the pattern computes all scores."""
    number = int(trace.operator[pattern.scores])
    scores = (
        _operator(trace.operators[number], trace.names[int(trace.name[pattern.scores])], gpu) if number >= 0 else None
    )
    if not isinstance(scores, Gemm):
        return None
    return Attention(
        name="fused attention",
        pass_=Pass.BACKWARD if pattern.backward else Pass.FORWARD,
        batch=1,
        num_heads=scores.batch,
        num_kv_heads=scores.batch,
        seq_q=scores.m,
        seq_kv=scores.n,
        head_dim=scores.k,
        v_head_dim=scores.k,
        causal=False,
        dtype=scores.dtype,
    )


def _unfilled_s(cost: Cost) -> float:
    """Seconds that a compute-bound GEMM spends on partly empty tiles and waves."""
    full = float(cost.details.get("tile_efficiency", 1.0)) * float(cost.details.get("wave_efficiency", 1.0))
    bound = float(cost.compute_s) >= float(cost.memory_s)
    return min(float(cost.compute_s), float(cost.time_s)) * (1 - full) if bound else 0.0


def _costs(operators: Sequence[Gemm | Attention], gpu: Gpu, calibration: Calibration | None) -> list[Cost | None]:
    """Predicted cost of each; None where the device cannot run it."""
    priced_costs: list[Cost | None] = [None] * len(operators)
    for dtype in {operator.dtype for operator in operators}:
        index = [i for i, operator in enumerate(operators) if operator.dtype is dtype]
        try:
            costs = operator_costs([operators[i] for i in index], gpu, calibration or load_calibration(gpu))
        except InputError:
            continue
        for i, cost in zip(index, costs, strict=True):
            priced_costs[i] = cost
    return priced_costs


def _operator(seen: HostOperator, kernel: str, gpu: Gpu) -> Gemm | Attention | None:
    dtype = _dtype_in(seen, kernel)
    if dtype is None or dtype not in gpu.peak_flops_per_s:
        return None
    return _attention(seen, dtype) if "attention" in seen.name else _gemm(seen, dtype)


def _dtype_in(seen: HostOperator | None, kernel: str) -> DType | None:
    """Data type of an operator's kernel: a narrow one that the kernel's name states, else that of the operator's first
    input, else by the name (Nsight Systems records no types)."""
    dtype = next((dtype for dtype, pattern in OF_KERNEL if re.search(pattern, kernel)), None)
    if dtype not in NARROW_TYPES and seen is not None and seen.dtype:
        dtype = DTYPES.get(seen.dtype.rpartition("::")[2])
    is_tf32 = "tf32" in kernel or (dtype is DType.FP32 and re.search(r"tensorop_s|s1688|s16816", kernel))
    return DType.TF32 if is_tf32 else dtype


def _gemm(seen: HostOperator, dtype: DType) -> Gemm | None:
    """``aten::mm [m,k] [k,n]``, ``addmm`` with its bias first, ``bmm``, ``linear [..., k] [n, k]``."""
    name, dims = seen.name.removeprefix("aten::"), seen.dims
    dims = dims[1:] if name in ("addmm", "baddbmm") else dims
    if len(dims) < 2:
        return None
    a, b = dims[0], dims[1]
    batch = 1
    if name in ("mm", "addmm", "_scaled_mm") and len(a) == len(b) == 2 and a[1] == b[0]:
        m, k, n = a[0], a[1], b[1]
    elif name in ("bmm", "baddbmm") and len(a) == len(b) == 3 and a[2] == b[1]:
        batch, m, k, n = a[0], a[1], a[2], b[2]
    elif name == "linear" and len(b) == 2 and a and a[-1] == b[1]:
        m, k, n = math.prod(a[:-1]), b[1], b[0]
    else:
        return None
    if min(m, n, k, batch) < 1:
        return None
    words = f"{name} {f'{batch} x ' if batch > 1 else ''}{m} x {n} x {k}"
    return Gemm(name=words, m=m, n=n, k=k, batch=batch, dtype=dtype)


def _attention(seen: HostOperator, dtype: DType) -> Attention | None:
    """Attention from inputs ``(batch, heads, tokens, size)``; flash's own operator has tokens before heads."""
    back = "backward" in seen.name
    dims = seen.dims[1:] if back else seen.dims  # the first input is the gradient
    if len(dims) < 2 or len(dims[0]) != 4 or len(dims[1]) != 4:
        return None
    (b, h, s, d), (_, kv, t, _) = dims[0], dims[1]
    if "_flash_attention" in seen.name and "scaled_dot" not in seen.name:
        h, s, kv, t = s, h, t, kv
    if min(b, h, s, d, kv, t) < 1 or h % kv:
        return None
    return Attention(
        name=f"attention {b} x {h} heads x {s} x {d}{' backward' if back else ''}",
        pass_=Pass.BACKWARD if back else Pass.FORWARD,
        batch=b,
        num_heads=h,
        num_kv_heads=kv,
        seq_q=s,
        seq_kv=t,
        head_dim=d,
        v_head_dim=d,
        dtype=dtype,
    )


def _padded(gemm: Gemm, gpu: Gpu) -> tuple[Gemm, str]:
    """The GEMM with misaligned sizes padded to the next multiple, and those sizes in words (empty: none)."""
    rule = alignment_of(gpu, gemm.dtype)
    sizes = {name: int(getattr(gemm, name)) for name in ("m", "n", "k")}
    ragged: JsonDict = {
        name: int(round_up(size, max(rule.preferred, SMALL)))
        for name, size in sizes.items()
        if size % rule.minimum and size > SMALL
    }
    if not ragged:
        return gemm, ""
    return replace(gemm, **ragged), ", ".join(f"{name}={size}" for name, size in ragged.items())


# ----------------------------------------------------------------------------------------------------------- the job

BACKWARD = re.compile(r"backward|bwd|wgrad|dgrad", re.IGNORECASE)
FOUR_BITS = re.compile(r"dequantize_?blockwise|gemv_4bit|nf4|_MxE2m1Mx", re.IGNORECASE)
"""Kernels of bitsandbytes and torchao that unpack 4-bit weights, and of TensorRT-LLM that multiply them by wider
activations."""
WHOLE = 0.9
"""Weights are called frozen only if this share of the time of linear layers has sizes: a kernel of unknown sizes may
compute their gradients."""
FROZEN, PARTLY = 0.1, 0.2
"""Weight gradients cost half of what forward and input gradients cost together (a third with full recomputation);
below these ratios all weights are frozen, or a part of them."""
RANK, NARROW = 256, 8
"""An adapter's rank is at most this, and so many times smaller than the other side."""
COMMON = 0.1
"""A data type is named if it takes this share of the time of products."""


def job_kind(trace: KernelTrace, kinds: IntArray, line: TraceTimeline) -> JobKind:
    """Whether a trace trains or infers, in which data types, and which weights it trains."""
    products = np.isin(kinds, [KINDS.index(KernelKind.MATMUL), KINDS.index(KernelKind.ATTENTION)])
    names = (*trace.names, *(operator.name for operator in trace.operators))
    trains = any(BACKWARD.search(name) for name in names) or bool((kinds == KINDS.index(KernelKind.OPTIMIZER)).any())
    if not trains and not products.any():
        return JobKind()
    seconds: defaultdict[DType, float] = defaultdict(float)
    for i in np.flatnonzero(products & (line.owned_s > 0)).tolist():
        number = int(trace.operator[i])
        dtype = _dtype_in(trace.operators[number] if number >= 0 else None, trace.names[int(trace.name[i])])
        if dtype is not None:
            seconds[dtype] += float(line.owned_s[i])
    common = [dtype for dtype in seconds if seconds[dtype] >= COMMON * sum(seconds.values())]
    trained, rank = _trained(trace, kinds, line) if trains else ("", 0)
    return JobKind(
        work="training" if trains else "inference",
        precision=tuple(sorted(common, key=lambda dtype: -seconds[dtype])),
        trained=trained,
        rank=rank,
        four_bits=any(FOUR_BITS.search(name) for name in names),
        tokens=_decoded(trace) if not trains else 0,
    )


def _decoded(trace: KernelTrace) -> int:
    """Tokens that the median marked step decodes; 0 if a step has no engine's mark, or prefills."""
    marks = [ENGINE_STEP.match(name) for name, *_ in trace.steps]
    tokens = [int(mark[2]) for mark in marks if mark and mark[1] == "0"]
    return int(np.median(tokens)) if tokens and len(tokens) == len(marks) else 0


def _trained(trace: KernelTrace, kinds: IntArray, line: TraceTimeline) -> tuple[str, int]:
    """Which weights are trained, and the rank of adapters. Forward and input gradients have the tokens as rows; weight
    gradients sum over the tokens."""
    linear = (kinds == KINDS.index(KernelKind.MATMUL)) & (line.owned_s > 0)
    linear &= ~trace.launched_by(BATCHED)
    gemms = {
        number: _gemm(trace.operators[number], DType.BF16)
        for number in set(trace.operator[linear].tolist())
        if number >= 0
    }
    sized = np.array([gemms.get(number) is not None for number in trace.operator.tolist()], dtype=bool)
    if float(line.owned_s[linear & sized].sum()) < WHOLE * float(line.owned_s[linear].sum()) or not linear.any():
        return "", 0
    sizes = [(int(op.m), int(op.n), int(op.k)) for op in gemms.values() if op is not None]
    rows: Counter[int] = Counter()
    for m, n, k in sizes:
        rows[m] += m * n * k
    tokens = max(rows, key=lambda size: rows[size])
    kept = sum(m * n * k for m, n, k in sizes if m == tokens != k)
    gradients = sum(m * n * k for m, n, k in sizes if k == tokens != m)
    if not kept or gradients > PARTLY * kept:
        return ("all" if kept else ""), 0
    narrow = [
        Counter(side for m, side, other in order if m == tokens and side <= RANK and NARROW * side <= other)
        for order in (sizes, [(m, k, n) for m, n, k in sizes])
    ]
    ranks = narrow[0] & narrow[1]
    if gradients > FROZEN * kept:
        return "part", 0
    return ("adapters", max(ranks, key=lambda side: ranks[side])) if ranks and gradients else ("none", 0)


COLLECTIVES = {
    "reducescatter": CollectiveKind.REDUCE_SCATTER,
    "allgather": CollectiveKind.ALL_GATHER,
    "allreduce": CollectiveKind.ALL_REDUCE,
    "alltoall": CollectiveKind.ALL_TO_ALL,
    "send": CollectiveKind.SEND_RECV,
    "recv": CollectiveKind.SEND_RECV,
}


def collective_seconds(trace: KernelTrace, index: IntArray, gpu: Gpu, cluster: Cluster | None) -> FloatArray:
    """Predicted seconds of the collectives in a trace; NaN if kind, size or group are not known."""
    seconds_of: dict[Collective | None, float] = {None: math.nan}
    seconds = np.full(index.size, np.nan)
    for row, i in enumerate(index):
        op = collective_of(trace, int(i))
        if op not in seconds_of and op is not None:
            try:
                seconds_of[op] = float(collective_cost(op, gpu, load_calibration(gpu), cluster).time_s)
            except InputError:
                seconds_of[op] = math.nan
        seconds[row] = seconds_of[op]
    return seconds


def collective_of(trace: KernelTrace, index: int) -> Collective | None:
    """What a kernel sends; None if kind, size or group are not known."""
    number = int(trace.operator[index])
    if number < 0:
        return None
    seen = trace.operators[number]
    words = f"{seen.collective} {trace.names[int(trace.name[index])]}".lower().replace("_", "")
    kind = next((kind for word, kind in COLLECTIVES.items() if word in words), None)
    size = seen.elements * WIDTHS.get(seen.dtype.rpartition("::")[2], 0)
    group = seen.group_size or trace.world_size or 0
    if kind is None or size <= 0 or group < 2:
        return None
    return Collective(name=kind.value, kind=kind, group_size=group, message_bytes=float(size))
