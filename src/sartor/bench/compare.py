"""Compare the cost model's predictions with cases that were timed.

An operator is priced alone, at the clock of its mode; a stack is lowered by ``sartor.model.lower`` and priced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sartor.bench.cases import BenchCase, ClockMode, StackRun, StepPart
from sartor.bench.records_file import row_key
from sartor.cost.correction.calibration import TORCH, Calibration, Clock, load_calibration
from sartor.cost.price import Estimate, price
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.model.layer import AttentionMixer, DenseFfn, Layer, Norm
from sartor.model.lower import lower
from sartor.model.lower.optimizer import ADAM_BYTES_PER_PARAM
from sartor.model.lower.setting import Kernels
from sartor.model.shape import LayerRun, Stack, TransformerShape
from sartor.model.workload import Phase, Workload
from sartor.operators import (
    Attention,
    DType,
    Gemm,
    GroupedGemm,
    MemoryBound,
    MemoryBoundKind,
    Operator,
    OperatorGraph,
    Part,
    Pass,
    Role,
)

EAGER = Kernels(fused=False, accumulates=False)
"""Plain PyTorch: chains of elementwise kernels, weight gradients written in 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One case, predicted and measured."""

    case: BenchCase
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    source: str

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_s / self.measured_s


def pairs(cases: Iterable[BenchCase], rows: Sequence[JsonMap], gpu: Gpu, calibration: Calibration | None) -> list[Pair]:
    """Measured cases with their predictions; a case timed several times has the median of its times."""
    measured: dict[tuple[str, ...], list[float]] = {}
    for row in rows:
        measured.setdefault(row_key(row), []).append(float(row["latency_us"]) * 1e-6)
    matched = []
    for case in cases:
        if (times := measured.get(case.key)) and (priced := predict(case, gpu, calibration)) is not None:
            matched.append(
                Pair(
                    case=case,
                    predicted_s=float(priced.time_s),
                    low_s=float(priced.low_s),
                    high_s=float(priced.high_s),
                    measured_s=float(np.median(times)),
                    source=priced.source.value,
                )
            )
    return matched


OWN_CHOICE = ("", "cudnn")
"""Kernels of attention that PyTorch chooses by itself where its family was measured (``attention_families``)."""


def predict(case: BenchCase, gpu: Gpu, calibration: Calibration | None) -> Estimate | None:
    """The estimate of one case; None if the device has no GEMMs of this type."""
    clock = Clock.SUSTAINED if case.mode is ClockMode.SUSTAINED else Clock.BOOST
    calibrated = calibration or load_calibration(gpu)
    if isinstance(case.work, StackRun | Attention | GroupedGemm | MemoryBound) and case.kernel in OWN_CHOICE:
        calibrated = calibrated.with_kernels(TORCH)
    if isinstance(case.work, StackRun):
        graph = _stack_graph(case.work, writes_cache=TORCH in calibrated.attention_families)
    else:
        graph = OperatorGraph(operators=(as_timed(case.work),))
    try:
        return price(graph, gpu, calibrated, clock=clock)
    except ValueError:
        return None


def as_timed(work: Operator) -> Operator:
    """The kernel that was timed: fp8 operands are narrow already, a norm of no name is a layer norm, a loss of one
    kernel is one of 16-bit logits, an optimizer's states are fp32."""
    if isinstance(work, Gemm) and work.dtype is DType.FP8:
        return replace(work, quantized=True)
    if not isinstance(work, MemoryBound) or int(work.kernels) != 1:
        return work
    if work.kind is MemoryBoundKind.OPTIMIZER:
        return replace(work, bytes_moved=ADAM_BYTES_PER_PARAM * work.rows * work.cols, dtype=DType.FP32)
    return replace(work, kernel=work.kernel or _UNNAMED.get(work.kind, ""))


_UNNAMED = {MemoryBoundKind.NORM: "layernorm", MemoryBoundKind.CROSS_ENTROPY: "cross_entropy"}


def _stack_graph(run: StackRun, *, writes_cache: bool = False) -> OperatorGraph:
    """Operators that plain PyTorch runs for a stack; without embedding, head and optimizer if the run has none.
    ``writes_cache``: attention's time is without the kernels that write new keys and values into the cache, which
    serving frameworks' includes."""
    phases = {StepPart.FORWARD: Phase.PREFILL, StepPart.DECODE: Phase.DECODE}
    workload = Workload(
        shape=_stack_shape(run),
        phase=phases.get(run.part, Phase.TRAIN),
        microbatch_size=run.batch,
        seq_len=run.seq_len,
        context_len=run.context_len,
        dtype=run.dtype,
    )
    graph = lower(workload, kernels=Kernels(accumulates=False), optimizer=run.part is StepPart.STEP)
    operators = tuple(_as_run(op, run) for op in graph.operators if run.vocab_size or op.part is Part.LAYER)
    if writes_cache and run.part is StepPart.DECODE:
        operators = (*operators, _copies("cache_write", run, run.batch, 2 * run.num_kv_heads * run.head_dim, kernels=2))
    if run.part in (StepPart.TRAIN, StepPart.STEP):
        heads = (run.num_heads + 2 * run.num_kv_heads) * run.head_dim
        halves = 2 * run.ffn_hidden_size if run.gated else 0
        operators = (
            *operators,
            *(_copies("joined_gradients", run, run.batch * run.seq_len, width) for width in (heads, halves) if width),
        )
    return OperatorGraph(operators=operators, tokens=graph.tokens)


def _as_run(op: Operator, run: StackRun) -> Operator:
    """An operator as the stack has it: a forward pass ends in logits of every token, and the optimizer's states are of
    the weights' type."""
    if isinstance(op, Gemm) and op.role is Role.LOGITS and run.part is StepPart.FORWARD:
        return replace(op, m=run.batch * run.seq_len)
    if isinstance(op, MemoryBound) and op.kind is MemoryBoundKind.OPTIMIZER:
        return replace(op, bytes_moved=ADAM_BYTES_PER_PARAM / DType.FP32.bytes * run.dtype.bytes * op.cols)
    return op


def _copies(name: str, run: StackRun, rows: int, cols: int, kernels: int = 1) -> MemoryBound:
    """Copies that each layer makes: keys and values into the cache, and in backward the gradients of queries, keys and
    values and of both halves of a gated projection, joined for the product they came from."""
    backward = run.part in (StepPart.TRAIN, StepPart.STEP)
    return MemoryBound(
        name=name,
        kind=MemoryBoundKind.CAST,
        rows=rows,
        cols=cols,
        bytes_moved=2.0 * rows * cols * run.dtype.bytes,
        kernels=kernels,
        count=run.num_layers,
        dtype=run.dtype,
        pass_=Pass.BACKWARD if backward else Pass.FORWARD,
    )


def _stack_shape(run: StackRun) -> TransformerShape:
    """The model of a stack: equal pre-norm layers, with a tied embedding if it has a vocabulary."""
    mixer = AttentionMixer(
        num_heads=run.num_heads, num_kv_heads=run.num_kv_heads, head_dim=run.head_dim, causal=run.causal
    )
    layer = Layer(
        mixers=(mixer,),
        ffn=DenseFfn(ffn_hidden_size=run.ffn_hidden_size, gated=run.gated),
        norms=(Norm(name="norm1"), Norm(name="norm2")),
    )
    stack = Stack(
        name="decoder",
        hidden_size=run.hidden_size,
        runs=(LayerRun(layer=layer, count=run.num_layers),),
        norms=(Norm(name="final"),) if run.vocab_size else (),
    )
    return TransformerShape(name=run.name, stacks=(stack,), vocab_size=max(run.vocab_size, 1))
