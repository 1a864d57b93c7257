"""Rows of ``sartor measure`` as the cases again that were timed: for fits, for docs/measured.md and for tests."""

from __future__ import annotations

from typing import Any

from sartor.bench.cases import BenchCase, ClockMode, StackRun, StepPart, Work
from sartor.json_types import JsonMap
from sartor.operators import Attention, DType, Gemm, GroupedGemm, Layout, MemoryBound, MemoryBoundKind, Pass
from sartor.records.rows import MEMORY_BOUND, dtype_of


def case_of(row: JsonMap) -> BenchCase:
    """The case of a row of ``sartor measure``, with the same key. Of a memory-bound kernel a row has the bytes, not how
    many launches moved them. Raises ``KeyError`` for a table without cases here (collectives)."""
    work = _WORK[row["table"]](row, dtype_of(row["dtype"]))
    return BenchCase(
        work=work, kernel=row["kernel"], mode=ClockMode(row["mode"]), resident=str(row["resident"]) not in ("0", "")
    )


def _whole(row: JsonMap, *names: str) -> dict[str, Any]:
    return {name: int(float(row[name])) for name in names}


def _gemm(row: JsonMap, dtype: DType) -> Work:
    return Gemm(name="gemm", **_whole(row, "batch", "m", "n", "k"), dtype=dtype, layout=Layout(row["layout"]))


def _grouped(row: JsonMap, dtype: DType) -> Work:
    groups, rows = _whole(row, "batch", "m").values()
    layout, pass_ = Layout(row["layout"]), Pass(row["pass"])
    sizes = _whole(row, "n", "k")
    return GroupedGemm(name="grouped", groups=groups, rows=rows, **sizes, dtype=dtype, layout=layout, pass_=pass_)


def _attention(row: JsonMap, dtype: DType) -> Work:
    heads, kv_heads, head_dim = _whole(row, "heads", "kv_heads", "head_dim").values()
    return Attention(
        name="attention",
        **_whole(row, "batch", "seq_q", "seq_kv", "window"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim,
        causal=str(row["causal"]) == "True",
        dtype=dtype,
        pass_=Pass(row["pass"]),
    )


def _memory_bound(row: JsonMap, dtype: DType) -> Work:
    word, kind = str(row["op"]), MEMORY_BOUND.get(str(row["op"]), MemoryBoundKind.RESIDUAL)
    steps, sizes = kind is MemoryBoundKind.OPTIMIZER, _whole(row, "rows", "cols")
    return MemoryBound(
        name=word,
        kind=kind,
        kernel="" if word == kind.value else word,
        rows=sizes["rows"],
        cols=sizes["cols"],
        bytes_moved=float(row["bytes"]),
        dtype=dtype,
        pass_=Pass.OPTIMIZER if steps else Pass(row["pass"]),
    )


def _stack(row: JsonMap, dtype: DType) -> Work:
    sizes = _whole(row, "batch", "heads", "kv_heads", "head_dim", "layers", "hidden", "ffn", "vocab", "seq", "seq_kv")
    return StackRun(
        name=row["model"],
        hidden_size=sizes["hidden"],
        num_heads=sizes["heads"],
        num_kv_heads=sizes["kv_heads"],
        head_dim=sizes["head_dim"],
        ffn_hidden_size=sizes["ffn"],
        gated=str(row["gated"]) == "1",
        causal=str(row["causal"]) == "True",
        num_layers=sizes["layers"],
        vocab_size=sizes["vocab"],
        batch=sizes["batch"],
        seq_len=sizes["seq"],
        context_len=sizes["seq_kv"],
        part=StepPart(row["phase"]),
        dtype=dtype,
    )


_WORK = {
    "gemm": _gemm,
    "grouped_gemm": _grouped,
    "attention": _attention,
    "memory_bound": _memory_bound,
    "layer_and_model": _stack,
}
