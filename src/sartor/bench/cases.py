"""A case: one operator, layer or model to time, and the columns that identify it in a records file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from sartor.json_types import JsonDict, JsonMap
from sartor.operators import Attention, Collective, DType, Gemm, GroupedGemm, MemoryBound, Pass


class ClockMode(StrEnum):
    """``BURST``: a few milliseconds at boost clock, as in published tables. ``SUSTAINED``: after more than a second of
    the same work, at the clock that the power limit allows."""

    BURST = "burst"
    SUSTAINED = "sustained"


class StepPart(StrEnum):
    """Which part of a stack to run: forward, forward and backward, or a step with the optimizer."""

    FORWARD = "forward"
    TRAIN = "train_step"
    STEP = "step"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackRun:
    """A stack of equal pre-norm transformer layers; with embedding and output head if ``vocab_size`` is not 0."""

    name: str
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_hidden_size: int
    gated: bool = False
    causal: bool = True
    num_layers: int = 1
    vocab_size: int = 0
    batch: int = 1
    seq_len: int = 512
    context_len: int = 0
    part: StepPart = StepPart.FORWARD
    dtype: DType = DType.BF16

    @property
    def num_params(self) -> int:
        """Parameters of the layers (without norms) and of a tied embedding."""
        h, width = self.hidden_size, self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        layer = h * width + (3 if self.gated else 2) * h * self.ffn_hidden_size
        return self.num_layers * layer + self.vocab_size * h

    @property
    def flops(self) -> float:
        """FLOPs of the weight GEMMs only: a rough estimate of the run time."""
        tokens = self.batch * (1 if self.part is StepPart.DECODE else self.seq_len)
        passes = 2.0 if self.part in (StepPart.FORWARD, StepPart.DECODE) else 6.0
        return passes * self.num_params * tokens


Work: TypeAlias = Gemm | GroupedGemm | Attention | MemoryBound | Collective | StackRun


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCase:
    """One thing to time. ``kernel`` selects one of several kernels for it (flash, efficient, math, cudnn)."""

    work: Work
    kernel: str = ""
    mode: ClockMode = ClockMode.BURST
    resident: bool = False
    """Use the same buffers in every launch, to measure caches; otherwise rotate over more than the last cache holds."""
    tags: JsonMap = field(default_factory=dict, compare=False)
    """Labels that a study attaches; not part of the case's identity."""

    @property
    def table(self) -> str:
        """The table of data/measured that its records belong to."""
        return _TABLES[type(self.work)]

    @property
    def columns(self) -> JsonDict:
        """The columns of data/measured that identify the case."""
        return {"dtype": _LONG_NAMES[_dtype_of_work(self.work)], **_COLUMNS[type(self.work)](self.work), **self._own}

    @property
    def _own(self) -> JsonDict:
        return {"kernel": self.kernel, "mode": self.mode.value, "resident": int(self.resident)}

    @property
    def key(self) -> tuple[str, ...]:
        """Identity, equal for a case and its record read back: the table, then column=value sorted by name."""
        return key_of(self.table, self.columns)

    @property
    def label(self) -> str:
        """Short description for progress output: ``gemm 512x1024x4096 TN bf16``."""
        return _label(self)


def key_of(table: str, columns: JsonMap) -> tuple[str, ...]:
    """A case's identity from its columns, given as numbers or as CSV text."""
    return (table, *(f"{name}={_word(columns.get(name, ''))}" for name in IDENTITY[table]))


def _dtype_of_work(work: Work) -> DType:
    """Element type; bf16 for a collective."""
    return DType.BF16 if isinstance(work, Collective) else work.dtype


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    text = str(value)
    return text.removesuffix(".0") if text.replace(".", "", 1).isdigit() else text


_LONG_NAMES = {dtype: dtype.value for dtype in DType} | {
    DType.FP32: "float32",
    DType.BF16: "bfloat16",
    DType.FP16: "float16",
}


def _gemm(op: Gemm) -> JsonDict:
    sizes = {"batch": op.batch, "m": op.m, "n": op.n, "k": op.k}
    return {**sizes, "layout": op.layout.value, "op": "bmm" if int(op.batch) > 1 else "linear"}


def _grouped(op: GroupedGemm) -> JsonDict:
    sizes = {"batch": op.groups, "m": op.rows, "n": op.n, "k": op.k}
    return {**sizes, "layout": op.layout.value, "pass": op.pass_.value}


def _attention(op: Attention) -> JsonDict:
    few = int(op.seq_q) <= 8 and int(op.seq_kv) > int(op.seq_q)
    phase = "generation" if few else ("context" if op.causal else "encoder")
    return {
        "kv_dtype": _LONG_NAMES[op.dtype],
        "phase": phase,
        "batch": op.batch,
        "heads": op.num_heads,
        "kv_heads": op.num_kv_heads,
        "head_dim": op.head_dim,
        "window": op.window,
        "seq_q": op.seq_q,
        "seq_kv": op.seq_kv,
        "causal": str(bool(op.causal)),
        "pass": op.pass_.value,
    }


def _memory_bound(op: MemoryBound) -> JsonDict:
    return {
        "op": op.kernel or op.kind.value,
        "rows": op.rows,
        "cols": op.cols,
        "bytes": float(op.bytes_moved),
        "pass": op.pass_.value if op.pass_ is not Pass.OPTIMIZER else Pass.FORWARD.value,
    }


def _collective(op: Collective) -> JsonDict:
    return {"op": op.kind.value, "n_gpus": op.group_size, "bytes": float(op.message_bytes)}


def _stack(run: StackRun) -> JsonDict:
    return {
        "model": run.name,
        "phase": run.part.value,
        "batch": run.batch,
        "seq": run.seq_len,
        "seq_kv": run.context_len,
        "layers": run.num_layers,
        "hidden": run.hidden_size,
        "heads": run.num_heads,
        "kv_heads": run.num_kv_heads,
        "head_dim": run.head_dim,
        "ffn": run.ffn_hidden_size,
        "gated": int(run.gated),
        "vocab": run.vocab_size,
        "causal": str(run.causal),
        "part": "total" if run.vocab_size else "layer",
    }


_TABLES: Mapping[type, str] = {
    Gemm: "gemm",
    GroupedGemm: "grouped_gemm",
    Attention: "attention",
    MemoryBound: "memory_bound",
    Collective: "collectives",
    StackRun: "layer_and_model",
}
_COLUMNS: Mapping[type, Any] = {
    Gemm: _gemm,
    GroupedGemm: _grouped,
    Attention: _attention,
    MemoryBound: _memory_bound,
    Collective: _collective,
    StackRun: _stack,
}
_ALWAYS = ("dtype", "kernel", "mode", "resident")
IDENTITY: Mapping[str, tuple[str, ...]] = {
    "gemm": (*_ALWAYS, "batch", "m", "n", "k", "layout"),
    "grouped_gemm": (*_ALWAYS, "batch", "m", "n", "k", "layout", "pass"),
    "attention": (
        *_ALWAYS, "phase", "batch", "heads", "kv_heads", "head_dim", "window", "seq_q", "seq_kv", "causal", "pass",
    ),
    "memory_bound": (*_ALWAYS, "op", "rows", "cols", "pass"),
    "collectives": (*_ALWAYS, "op", "n_gpus", "bytes"),
    "layer_and_model": (
        *_ALWAYS, "model", "phase", "batch", "seq", "seq_kv", "layers", "hidden", "heads", "kv_heads", "head_dim",
        "ffn", "gated", "vocab", "causal",
    ),
}  # fmt: skip
"""Columns that identify a case, by table."""


def _label(case: BenchCase) -> str:
    columns = case.columns
    sizes = "x".join(
        str(columns[name]) for name in ("m", "n", "k", "rows", "cols", "seq_q", "seq_kv") if name in columns
    )
    words = [case.table, str(columns.get("op", columns.get("model", ""))), sizes, str(columns.get("layout", ""))]
    words += [str(columns.get("pass", "")), case.kernel, columns["dtype"]]
    return " ".join(word for word in words if word and word not in ("linear", "forward"))
