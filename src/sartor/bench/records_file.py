"""Records of timed cases: the file that grows while a suite runs, and what the cost model predicts for the cases.

Rows are appended whole, one at a time, so that an interrupted run can be resumed.

CSV is written row by row. Parquet is written at the end from a CSV beside it (``NAME.parquet.part.csv``); an
interrupted run leaves this CSV and the next run continues it.

An operator is priced alone, at the clock of its mode; a stack is lowered by ``sartor.model.lower`` and priced.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from sartor.bench.cases import IDENTITY, BenchCase, ClockMode, StackRun, StepPart, key_of
from sartor.bench.timing import COLUMNS, NOISY, DeviceFacts, device_columns
from sartor.bounded import read_csv
from sartor.cost.correction.calibration import TORCH, Calibration, Clock, load_calibration
from sartor.cost.price import Estimate, price
from sartor.errors import InputError
from sartor.files import check_writable, pyarrow, write_atomic
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

AGREE = 0.15
"""If two timings of a case differ by more, it is timed again."""

SAME = ("gpu", "device", "driver", "framework_version", "threads")
"""Columns that all rows of one file must share."""


class RecordsFile:
    """Rows of one device in one file.

    Raises ``InputError`` if the file exists and ``resume`` is false, is not a records file, or has rows of another
    device or software.
    """

    def __init__(self, path: str | Path, facts: DeviceFacts, *, resume: bool = False) -> None:
        self.path = Path(path)
        if self.path.suffix.lower() not in (".csv", ".parquet"):
            raise InputError("out", str(path), "must end in .csv or .parquet", f"{self.path.stem}.csv")
        self._parquet = self.path.suffix.lower() == ".parquet"
        self._journal = self.path.with_name(self.path.name + ".part.csv") if self._parquet else self.path
        if self._parquet:
            pyarrow("Parquet files")
        self._begin(resume)
        self.rows = read_rows(self._journal)
        _check_same(self.rows, facts, self.path)
        self._visits: dict[tuple[str, ...], list[float]] = {}
        self._clean: dict[tuple[str, ...], list[float]] = {}
        for row in self.rows:
            self._count(row)

    def append(self, row: JsonMap) -> None:
        """Write one row, completely or not at all."""
        text = _line([row.get(name, "") for name in COLUMNS])
        with self._journal.open("ab") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        words = {name: str(row.get(name, "")) for name in COLUMNS}
        self.rows.append(words)
        self._count(words)

    def visits(self, case: BenchCase) -> int:
        """How often a case was timed."""
        return len(self._visits.get(case.key, ()))

    def is_settled(self, case: BenchCase) -> bool:
        """Whether the case was timed without noise: once, or twice with times that agree within ``AGREE``."""
        clean = sorted(self._clean.get(case.key, []))
        return len(clean) == 1 or any(after <= (1 + AGREE) * before for before, after in pairwise(clean))

    def _count(self, row: Mapping[str, str]) -> None:
        key, latency = row_key(row), float(row.get("latency_us") or 0)
        self._visits.setdefault(key, []).append(latency)
        if not int(row.get("flag") or 0) & NOISY:
            self._clean.setdefault(key, []).append(latency)

    def close(self) -> None:
        """Write the Parquet file, if one was requested."""
        if self._parquet and self.rows:
            _write_parquet(self._journal, self.path)
            self._journal.unlink()

    def __enter__(self) -> RecordsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, resume: bool) -> None:
        existing = [path for path in {self.path, self._journal} if path.exists()]
        if existing and not resume:
            must = "exists; --resume goes on with it, or name another file"
            raise InputError("out", str(self.path), must, f"--out {self.path} --resume")
        check_writable(self.path, field="out")
        check_writable(self._journal, field="out")
        if self._parquet and self.path.exists() and not self._journal.exists():
            write_atomic(self._journal, _lines(_parquet_rows(self.path)), field="out")
        try:
            if not self._journal.exists() or self._journal.stat().st_size == 0:
                write_atomic(self._journal, _line(COLUMNS), field="out")
            else:
                _drop_part_line(self._journal)
        except OSError as error:
            raise InputError("out", str(self.path), f"must be writable ({error.strerror})") from None


def row_key(row: JsonMap) -> tuple[str, ...]:
    """The identity of the row's case."""
    return key_of(row["table"], row) if row.get("table") in IDENTITY else ()


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """Rows of a records file as text. Raises ``InputError`` if it is not a records file."""
    path = Path(path)
    if path.suffix.lower() == ".parquet":
        return _parquet_rows(path)
    return read_csv(path, "records", "must be a CSV file of sartor measure", ("table", "gpu", "latency_us"))


def _write_parquet(source: Path, target: Path) -> None:
    """Convert a records CSV to Parquet, with numeric columns."""
    _, pq = pyarrow("Parquet files")
    import pyarrow.csv as pc

    table = pc.read_csv(source, convert_options=pc.ConvertOptions(strings_can_be_null=True))
    whole = io.BytesIO()
    pq.write_table(table, whole, compression="zstd")
    write_atomic(target, whole.getvalue(), field="out")


def _parquet_rows(path: Path) -> list[dict[str, str]]:
    pa, pq = pyarrow("Parquet files")
    try:
        rows = pq.read_table(path).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise InputError("records", str(path), f"must be a Parquet file that can be read ({error})") from None
    return [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]


def _check_same(rows: Sequence[Mapping[str, str]], facts: DeviceFacts, path: Path) -> None:
    ours = device_columns(facts)
    for name in SAME:
        others = {row.get(name, "") for row in rows} - {str(ours.get(name, ""))}
        if others:
            must = f"in {path} differs from this run's {ours.get(name, '') or 'none'}: one file holds one device and "
            raise InputError(name, sorted(others)[0], must + "its software", "another --out")


def _drop_part_line(path: Path) -> None:
    """Cut off an incomplete last row, left by an interrupted write."""
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


def _lines(rows: Sequence[JsonMap]) -> bytes:
    return b"".join([_line(COLUMNS), *(_line([row.get(name, "") for name in COLUMNS]) for row in rows)])


def _line(values: Sequence[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode()


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
