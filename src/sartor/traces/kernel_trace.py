"""The kernels of one rank as columns, with the host's operators, launches, waits and frames; and their kinds, by name.

Kernel names are those of cuBLAS, CUTLASS, hipBLASLt, cuDNN, FlashAttention, NCCL, RCCL, DeepEP and PyTorch in published
traces. Kernels that match no pattern are reported as unknown.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from sartor.errors import InputError
from sartor.step.measured_run import OperatorCalls
from sartor.units import BoolArray, FloatArray, IntArray

T = TypeVar("T")

LONGEST_NAME = 200
"""Characters of a frame's name that are kept."""
PROFILER_STEP = "ProfilerStep#"
ENGINE_STEP = re.compile(r"execute_context_(\d+)\(\d+\)_generation_\d+\((\d+)\)")
"""vLLM's mark of a step: requests (tokens) that prefill, then those that decode."""
LONG_CALL_S = 100e-6
"""A launch returns within some microseconds; calls that take longer than this hold the host up."""
DEEPEST = 200
"""Number of operators begun before a launch that are searched for the enclosing one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOperator:
    """An operator of the framework: its name and the dimensions of its inputs."""

    name: str
    dims: tuple[tuple[int, ...], ...] = ()
    begin_s: float = 0.0
    end_s: float = 0.0
    collective: str = ""
    """Name of the collective; empty for other operators."""
    elements: int = 0
    """Of a collective: the larger of its input and output."""
    dtype: str = ""
    group_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostFrames:
    """Python functions and marked ranges of the host, as columns."""

    names: tuple[str, ...] = ()
    name: IntArray
    """Index into ``names``."""
    begin_s: FloatArray
    end_s: FloatArray

    def around(self, at_s: FloatArray, word: str) -> IntArray:
        """Index of a frame whose name contains ``word`` around each moment, among those; -1 where there is none."""
        named = np.array([word in name for name in self.names], dtype=bool)
        chosen = np.flatnonzero(named[self.name]) if named.any() else np.array([], dtype=np.int64)
        return last_span(np.stack([self.begin_s[chosen], self.end_s[chosen]], axis=1), at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTrace:
    """The kernels of one rank as columns, in order of begin."""

    path: str
    rank: int | None
    world_size: int | None
    gpu: str
    names: tuple[str, ...]
    name: IntArray
    """Index into ``names``."""
    begin_s: FloatArray
    end_s: FloatArray
    stream: IntArray
    operator: IntArray
    """Index into ``operators``; -1 where none is known."""
    launched_s: FloatArray
    """Time of the host's launch; NaN if not recorded."""
    operators: tuple[HostOperator, ...]
    step: IntArray
    """Index into ``steps`` by time of launch; -1 outside all steps."""
    steps: tuple[tuple[str, float, float], ...]
    """Step marks of the profiler: name, begin and end on the host."""
    waits: tuple[tuple[str, float, float], ...] = ()
    """Calls in which the host waited for the device, or that took longer than ``LONG_CALL_S``."""
    waits_for_events: bool = False
    """Whether a stream is told to wait for an event."""
    frames: _HostFrames
    begun_s: float = float("nan")
    """When the host's first recorded operator or call began; NaN without any."""
    reserved_bytes: float = 0.0
    """Largest amount that the allocator reserved; 0 if not recorded."""
    memory_bytes: float = 0.0
    """Memory of the device; 0 if not recorded."""

    @property
    def span_s(self) -> float:
        """From the first kernel's begin to the last one's end."""
        return float(self.end_s.max() - self.begin_s.min()) if self.begin_s.size else 0.0

    @property
    def step_edges_s(self) -> FloatArray:
        """Begin of the first step that has kernels, and the end of each: a step lasts from the last kernel of the step
        before to its own last kernel, so the gap between them is part of it. The first step lasts at least as long as
        its mark on the host. Empty if no step has kernels."""
        with_kernels = [i for i in range(len(self.steps)) if (self.step == i).any()]
        if not with_kernels:
            return np.array([])
        ends = np.maximum.accumulate([self.end_s[self.step == i].max() for i in with_kernels])
        _, left, right = self.steps[with_kernels[0]]
        first = min(float(self.begin_s[self.step == with_kernels[0]].min()), float(ends[0]) - (right - left))
        edges: FloatArray = np.array([first, *ends])
        return edges

    def between(self, first: int, last: int) -> KernelTrace:
        """With the marked steps of these numbers alone (their places, from 1, where marks have none). Raises
        ``InputError`` for none."""
        marks = [re.search(r"#(\d{1,12})", name) for name, _, _ in self.steps]
        numbers = [int(mark[1]) if mark else place for place, mark in enumerate(marks, 1)]
        inside = [i for i, number in enumerate(numbers) if first <= number <= last]
        if not inside:
            near = f"{numbers[0]}:{numbers[-1]}" if numbers else ""
            must = f"the trace has steps {numbers[0]} to {numbers[-1]}" if numbers else "the trace marks no steps"
            raise InputError("steps", f"{first}:{last}", must, near)
        place = {index: new for new, index in enumerate(inside)}
        step = np.array([place.get(int(index), -1) for index in self.step], dtype=np.int64)
        return replace(self, step=step, steps=tuple(self.steps[index] for index in inside))

    def named(self, pattern: re.Pattern[str]) -> BoolArray:
        """The kernels whose own name matches."""
        return np.array([pattern.search(name[:400]) is not None for name in self.names], dtype=bool)[self.name]

    def launched_by(self, pattern: re.Pattern[str]) -> BoolArray:
        """The kernels of operators whose collective or name matches."""
        words = (f"{operator.collective} {operator.name}" for operator in self.operators)
        return np.array([*(pattern.search(each) is not None for each in words), False])[self.operator]

    def operator_name(self, index: int) -> str:
        """The operator of a kernel, or the kernel's own name."""
        index_of_operator = int(self.operator[index])
        return self.operators[index_of_operator].name if index_of_operator >= 0 else self.names[int(self.name[index])]


@dataclass(slots=True)
class Recorded:
    """What a reader keeps of one rank's events, in seconds."""

    gpu: str = ""
    rank: int | None = None
    world_size: int | None = None
    reserved_bytes: float = 0.0
    memory_bytes: float = 0.0
    kernels: list[tuple[float, float, str, int, int, int]] = field(default_factory=list)
    """begin, duration, name, stream, correlation, external id"""
    launches: dict[int, tuple[float, int, object]] = field(default_factory=dict)
    """correlation -> time, external id, thread"""
    operators: dict[int, HostOperator] = field(default_factory=dict)
    threads: list[object] = field(default_factory=list)
    """Thread of each operator."""
    steps: list[tuple[str, float, float]] = field(default_factory=list)
    waits: list[tuple[str, float, float]] = field(default_factory=list)
    waits_for_events: bool = False
    frame_names: dict[str, int] = field(default_factory=dict)
    frame_name: array[int] = field(default_factory=lambda: array("q"))
    frame_begin_s: array[float] = field(default_factory=lambda: array("d"))
    frame_end_s: array[float] = field(default_factory=lambda: array("d"))
    shared: dict[Any, Any] = field(default_factory=dict)

    def same(self, value: T) -> T:
        """The equal value that was seen first: millions of kernels have some hundred names and sizes."""
        first: T = self.shared.setdefault(value, value)
        return first

    def add_call(self, name: str, begin_s: float, end_s: float) -> None:
        """Record a call of the CUDA runtime or driver, if the host or a stream waits in it."""
        self.waits_for_events |= "WaitEvent" in name
        if "Synchronize" in name or end_s - begin_s > LONG_CALL_S:
            self.waits.append((name, begin_s, end_s))

    def add_frame(self, name: str, begin_s: float, end_s: float) -> None:
        """Record a host function or marked range."""
        self.frame_name.append(self.frame_names.setdefault(name[:LONGEST_NAME], len(self.frame_names)))
        self.frame_begin_s.append(begin_s)
        self.frame_end_s.append(end_s)


def kernel_trace(path: str, recorded: Recorded) -> KernelTrace:
    """The recorded events as columns; there must be at least one kernel."""
    recorded.kernels.sort(key=lambda row: row[0])
    begin = np.array([row[0] for row in recorded.kernels])
    took = np.array([row[1] for row in recorded.kernels])
    names = {name: i for i, name in enumerate(dict.fromkeys(row[2] for row in recorded.kernels))}
    index = {number: i for i, number in enumerate(recorded.operators)}
    launches = [recorded.launches.get(row[4], (float("nan"), -1, None)) for row in recorded.kernels]
    around = _Around(recorded)
    operator_index = [
        index.get(launch[1], index.get(row[5], -1)) if launch[1] in index or row[5] in index else around(*launch)
        for row, launch in zip(recorded.kernels, launches, strict=True)
    ]
    launched = np.array([launch[0] for launch in launches])
    steps = sorted(set(recorded.steps), key=lambda mark: mark[1])
    steps = [mark for mark in steps if mark[0].startswith(PROFILER_STEP)] or steps
    return KernelTrace(
        path=path,
        rank=recorded.rank,
        world_size=recorded.world_size,
        gpu=recorded.gpu,
        names=tuple(names),
        name=np.array([names[row[2]] for row in recorded.kernels], dtype=np.int64),
        begin_s=begin,
        end_s=begin + np.maximum(took, 0.0),
        stream=np.array([row[3] for row in recorded.kernels], dtype=np.int64),
        operator=np.array(operator_index, dtype=np.int64),
        launched_s=launched,
        operators=tuple(recorded.operators.values()),
        step=_steps(np.where(np.isnan(launched), begin, launched), steps),
        steps=tuple(steps),
        waits=tuple(sorted(recorded.waits, key=lambda wait: wait[1])),
        waits_for_events=recorded.waits_for_events,
        frames=_frames(recorded),
        begun_s=min([operator.begin_s for operator in recorded.operators.values()] + [*recorded.frame_begin_s])
        if recorded.operators or recorded.frame_begin_s
        else float("nan"),
        reserved_bytes=recorded.reserved_bytes,
        memory_bytes=recorded.memory_bytes,
    )


def _frames(recorded: Recorded) -> _HostFrames:
    """Sorted by begin."""
    begin = np.array(recorded.frame_begin_s)
    order = np.argsort(begin, kind="stable")
    return _HostFrames(
        names=tuple(recorded.frame_names),
        name=np.array(recorded.frame_name, dtype=np.int64)[order],
        begin_s=begin[order],
        end_s=np.array(recorded.frame_end_s)[order],
    )


class _Around:
    """Finds the innermost operator running on a thread at a launch, as older traces have no id linking the two."""

    def __init__(self, recorded: Recorded) -> None:
        self.of: dict[object, list[tuple[float, float, int]]] = {}
        for i, (operator, thread) in enumerate(zip(recorded.operators.values(), recorded.threads, strict=True)):
            self.of.setdefault(thread, []).append((operator.begin_s, operator.end_s, i))
        for spans in self.of.values():
            spans.sort()

    def __call__(self, at_s: float, number: int, thread: object) -> int:
        begun = self.of.get(thread, [])
        last = bisect_right(begun, (at_s, float("inf"), 0))
        for begin_s, end_s, i in reversed(begun[max(last - DEEPEST, 0) : last]):
            if begin_s <= at_s <= end_s:
                return i
        return -1


def _steps(times_s: FloatArray, steps: list[tuple[str, float, float]]) -> IntArray:
    """The step during which each kernel was launched."""
    step_index = np.full(times_s.size, -1, dtype=np.int64)
    for i, (_, begin_s, end_s) in enumerate(steps):
        step_index[(times_s >= begin_s) & (times_s < end_s)] = i
    return step_index


class KernelKind(Enum):
    """What a kernel does."""

    COLLECTIVE = "communication"
    COPY = "copies"
    ATTENTION = "attention"
    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    OPTIMIZER = "optimizer"
    EMBEDDING = "embedding"
    MEMORY_BOUND = "memory_bound"
    UNKNOWN = "unknown"


OF_KERNEL = (
    (KernelKind.COLLECTIVE, r"nccl|rccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|sendrecv|deep_?ep|"
     r"(?:^|\W)(?:dispatch|combine|cached_notify|notify_dispatch)\b|nvshmem"),
    (KernelKind.COPY, r"^memcpy|^memset|^copy(?:host|device)to(?:host|device)|^fillbuffer"),
    (KernelKind.ATTENTION, r"flash_?(?:fwd|bwd|attn|attention)|fmha|attn|attention|sdpa"),
    (KernelKind.CONVOLUTION, r"conv(?!er)|winograd|[dw]grad2d|fprop|implicit_gemm|igemm_(?:fwd|bwd|wrw)|bwd_weight"),
    (KernelKind.MATMUL, r"(?<!fb)gemm|nvjet|cutlass|cijk_|xmma|cublas|wgmma|splitk|bmm_|matmul|_mm_"),
    (KernelKind.OPTIMIZER, r"multi_tensor_apply|(?<!h)adam|fused_optimizer|lamb_|sgd"),
    (KernelKind.EMBEDDING, r"(?<!rotary)(?<!rotary_)embedding|indexselect|indexing_backward"),
    (KernelKind.MEMORY_BOUND, r"elementwise|triton|reduce|norm|softmax|cat|copy|cast|transpose|fill|index|gather|"
     r"scatter|sort|scan|rope|rotary|permute|topk|dropout|gelu|silu|swiglu|quant|cross_entropy|nll|loss|unique|select|"
     r"pool|mapping|reshape|expand|dense_rep|tensorop|conver|upsample|dispatch_layout|finalizekernel"),
)  # fmt: skip
OF_OPERATOR = (
    (KernelKind.COLLECTIVE, r"record_param_comms|^c10d|^nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"),
    (KernelKind.ATTENTION, r"flash_?attention|scaled_dot_product|flashattn|efficient_attention|unified_attention"),
    (KernelKind.CONVOLUTION, r"convolution|conv\dd"),
    (
        KernelKind.MATMUL,
        r"^aten::(?:mm|addmm|bmm|baddbmm|matmul|linear|_scaled_mm|_grouped_mm)$|(?<!bi)(?<!tri)linear(?!i)|moe_forward|"
        r"(?<!fb)gemm",
    ),
    (KernelKind.OPTIMIZER, r"(?<!h)adam|sgd|optimizer|_foreach|adagrad_update|lamb(?!da)|addcdiv_|addcmul_"),
    (KernelKind.EMBEDDING, r"(?<!rotary)(?<!rotary_)embedding|fbgemm(?!.*quant)|lookup"),
    (KernelKind.MEMORY_BOUND, r"^aten::|^triton|norm|rope|rotary|cat|copy|quant|torch::autograd"),
)
_KERNEL = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in OF_KERNEL)
_OPERATOR = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in OF_OPERATOR)
KINDS = tuple(KernelKind)


OPTIMIZER_STEP = "Optimizer.step#"
"""Prefix of the ranges that PyTorch marks around an optimizer's step."""


def kernel_kinds(trace: KernelTrace) -> IntArray:
    """The kind of every kernel, as its index in ``KINDS``; elementwise kernels that an optimizer's step launches belong
    to the optimizer."""
    seen: dict[tuple[int, int], int] = {}
    kinds = np.empty(trace.name.size, dtype=np.int64)
    for i, pair in enumerate(zip(trace.operator.tolist(), trace.name.tolist(), strict=True)):
        if pair not in seen:
            operator = trace.operators[pair[0]].name if pair[0] >= 0 else ""
            seen[pair] = KINDS.index(_kind_of(trace.names[pair[1]], operator))
        kinds[i] = seen[pair]
    in_step = trace.frames.around(trace.launched_s, OPTIMIZER_STEP) >= 0
    kinds[in_step & (kinds == KINDS.index(KernelKind.MEMORY_BOUND))] = KINDS.index(KernelKind.OPTIMIZER)
    return kinds


def last_span(spans: FloatArray, at_s: FloatArray) -> IntArray:
    """Index of the last span to begin before each moment if it contains it, else -1. Spans [n, 2] are sorted."""
    if not spans.size:
        return np.full(at_s.size, -1)
    index = np.searchsorted(spans[:, 0], at_s, side="right") - 1
    inside: IntArray = np.where((index >= 0) & (spans[np.maximum(index, 0), 1] >= at_s), index, -1)
    return inside


@lru_cache(maxsize=4096)
def _kind_of(kernel: str, operator: str = "") -> KernelKind:
    """The name decides for collectives, copies, attention and optimizers; else the operator, then the name again."""
    by_name = next((kind for kind, pattern in _KERNEL if pattern.search(kernel[:300])), KernelKind.UNKNOWN)
    if by_name in (KernelKind.COLLECTIVE, KernelKind.COPY, KernelKind.ATTENTION, KernelKind.OPTIMIZER):
        return by_name
    if by_name is KernelKind.MATMUL and not operator:
        return by_name
    by_operator = next((kind for kind, pattern in _OPERATOR if operator and pattern.search(operator)), None)
    if by_name is KernelKind.MEMORY_BOUND and (
        by_operator is KernelKind.MATMUL or (by_operator is KernelKind.ATTENTION and "triton" not in kernel)
    ):
        return by_name  # a copy, cast or bias kernel of the operator; Triton names its attention kernels "triton" too
    if by_name is KernelKind.MATMUL and by_operator is KernelKind.EMBEDDING:
        return by_name  # FBGEMM has matrix multiplications as well as embedding tables
    if by_operator is None or (by_operator is KernelKind.MEMORY_BOUND and by_name is not KernelKind.UNKNOWN):
        return by_name
    return by_operator


LEAST_STEPS = 3
SHORT = 60
"""Kernel names are shortened to this many characters."""


def step_seconds(trace: KernelTrace) -> FloatArray:
    """Seconds of each step on the device, from the last kernel of the step before to its own last kernel; empty if
    there are fewer than ``LEAST_STEPS``."""
    seconds: FloatArray = np.diff(trace.step_edges_s)
    return seconds if seconds.size >= LEAST_STEPS and seconds.all() else np.array([])


def operator_seconds(trace: KernelTrace) -> Mapping[str, FloatArray]:
    """Seconds of each operator in each step; keys are name and input dimensions, or the kernel's name."""
    keys, key_index = _keys(trace)
    inside = trace.step >= 0
    took = trace.end_s - trace.begin_s
    table = np.zeros((len(keys), len(trace.steps)))
    np.add.at(table, (key_index[inside], trace.step[inside]), took[inside])
    steps = [i for i in range(len(trace.steps)) if (trace.step == i).any()]
    return {key: table[i, steps] for i, key in enumerate(keys)}


def kernel_seconds(trace: KernelTrace) -> Mapping[str, FloatArray]:
    """Seconds of the single kernels of each operator, over the whole trace."""
    keys, key_index = _keys(trace)
    took = trace.end_s - trace.begin_s
    order = np.argsort(key_index, kind="stable")
    ends = np.searchsorted(key_index[order], np.arange(len(keys) + 1))
    return {key: took[order[ends[i] : ends[i + 1]]] for i, key in enumerate(keys)}


def operator_calls(trace: KernelTrace) -> Mapping[str, OperatorCalls]:
    """Calls per step of each operator (over the whole trace where no step is marked), its sizes and its kernels."""
    keys, key_index = _keys(trace)
    inside = trace.step >= 0 if (trace.step >= 0).any() else np.ones(trace.step.size, dtype=bool)
    num_steps = np.unique(trace.step[inside]).size
    own = np.where(trace.operator >= 0, trace.operator, -1 - np.arange(trace.operator.size))  # without one: the kernel
    called = np.unique(np.stack([key_index, own])[:, inside], axis=1)
    calls = np.bincount(called[0], minlength=len(keys)) / num_steps
    kernels: dict[int, dict[str, None]] = {}
    for key, name in np.unique(np.stack([key_index, trace.name]), axis=1).T.tolist():
        kernels.setdefault(key, {})[short_kernel(trace.names[name])] = None
    return {
        key: OperatorCalls(calls=float(calls[i]), sizes=key.partition(" ")[2], kernels=tuple(kernels[i]))
        for i, key in enumerate(keys)
    }


def _keys(trace: KernelTrace) -> tuple[list[str], IntArray]:
    """Distinct keys (operator with sizes, or kernel name), and the key's index for every kernel."""
    seen: dict[tuple[int, int], int] = {}
    keys: dict[str, int] = {}
    key_index = np.zeros(trace.name.size, dtype=np.int64)
    for i, pair in enumerate(zip(trace.operator.tolist(), trace.name.tolist(), strict=True)):
        if pair not in seen:
            seen[pair] = keys.setdefault(_key(trace, *pair), len(keys))
        key_index[i] = seen[pair]
    return list(keys), key_index


def _key(trace: KernelTrace, operator: int, name: int) -> str:
    kernel = short_kernel(trace.names[name])
    if operator < 0 or kernel.startswith("nccl"):
        return kernel
    host_operator = trace.operators[operator]
    sizes = " ".join("x".join(map(str, dims)) for dims in host_operator.dims[:3])
    return f"{host_operator.name} {sizes}".strip()


def short_kernel(name: str) -> str:
    """A kernel's name without return type, namespaces, template arguments and parameters."""
    bare = re.sub(r"^(void|auto|std::enable_if<.*?>::type) ", "", name)
    head = re.split(r"[<(]", bare.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return head.rsplit("::", 1)[-1][:SHORT] or name[:SHORT]
