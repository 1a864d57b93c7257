"""Predicted times of operators that nobody timed, for every row of a file of shapes: arrays in, arrays out.

Each row is priced alone, as ``sartor gemm`` and ``sartor collective`` price one operator, by the rows' own readers
(``records.rows``), so the same columns mean the same here and in ``sartor validate``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sartor.answers.field import Answer, Fields
from sartor.answers.measured import OPERATORS
from sartor.cost.collective.links import volume
from sartor.cost.correction.attention import kernels_measured
from sartor.cost.correction.calibration import ANY, Calibration, Clock
from sartor.cost.correction.gemm import frameworks_of_gemms
from sartor.cost.cost import Bound, Cost, variance_of_each, weakest_source
from sartor.cost.gpu.rates import widened_note
from sartor.cost.price import Estimate, operator_costs, total_s
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.operators import Attention, Collective, Gemm, GroupedGemm, Layout, Operator, OperatorGraph
from sartor.records.rows import ASSUMED, Unexpressed, dtype_of
from sartor.records.shapes import ARGUMENT, LABELS, Shapes
from sartor.records.tables import Floats64, Index, Table
from sartor.records.targets import Devices, Targets, targets_of
from sartor.units import Floats
from sartor.validate.predictions import TargetPart, parts_of

Words = npt.NDArray[np.object_]

NUMBERS = (
    *("time_s", "low_s", "high_s", "compute_s", "memory_s", "network_s", "overhead_s"),
    *("flops", "bytes_moved", "achieved_flops_per_s", "achieved_bytes_per_s"),
)
TEXTS = ("gpu", "bound_by", "source", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class _UntimedRows:
    """One entry per row; NaN and empty words where there is no prediction."""

    numbers: Mapping[str, Floats64]
    """``NUMBERS``; the bandwidth of collectives is their bus bandwidth."""
    texts: Mapping[str, Words]
    """``TEXTS``; ``reason`` says why there is no prediction, and is empty where there is one."""

    @classmethod
    def empty(cls, size: int) -> _UntimedRows:
        return cls(
            numbers={name: np.full(size, np.nan) for name in NUMBERS},
            texts={name: np.full(size, "", dtype=object) for name in TEXTS},
        )

    def refuse(self, rows: Index, reason: str) -> None:
        self.texts["reason"][rows] = reason

    def put(self, rows: Index, values: JsonMap) -> None:
        """Set values of these rows."""
        for columns in (self.numbers, self.texts):
            for name in columns.keys() & values.keys():
                columns[name][rows] = values[name]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PricedOperators(Answer):
    """The shapes that were asked about, and what is predicted of each row."""

    fields: ClassVar[Fields] = OPERATORS
    shapes: Shapes
    rows: _UntimedRows
    assumptions: tuple[str, ...]

    @property
    def record(self) -> JsonDict:
        return priced_body(self)

    @property
    def expressed(self) -> int:
        return int((self.rows.texts["reason"] == "").sum())

    @property
    def refused(self) -> dict[str, Index]:
        """Positions of rows without a prediction by reason, in the order of the first ones."""
        reasons = self.rows.texts["reason"]
        rows = np.flatnonzero(reasons != "")
        by_reason = {reason: rows[reasons[rows] == reason] for reason in set(reasons[rows].tolist())}
        return dict(sorted(by_reason.items(), key=lambda item: int(item[1][0])))


def price_shapes(
    shapes: Shapes,
    calibration: Callable[[Gpu], Calibration],
    clock: Clock = Clock.BOOST,
    devices: Devices | None = None,
) -> PricedOperators:
    """Predictions for every row. ``calibration`` gives that of a device, with the kernels of rows that name none;
    ``devices`` are those that the catalogue lacks, by the rows' names for them. Raises ``InputError`` if no row can be
    priced."""
    rows, notes = _UntimedRows.empty(shapes.num_rows), list[str]()
    for reason, row_indices in shapes.refused.items():
        rows.refuse(row_indices, reason)
    calibration_of = _once(calibration)
    for table, row_indices in zip(shapes.tables, shapes.rows, strict=True):
        targets = targets_of([table], LABELS)
        table_rows = _priced_targets(targets, calibration_of, clock, devices or {}, notes)
        rows.put(
            row_indices,
            {name: values[targets.of_rows] for name, values in {**table_rows.numbers, **table_rows.texts}.items()},
        )
    kinds = dict.fromkeys(table.kind.name for table in shapes.tables)
    assumed = (*dict.fromkeys(notes), *(f"{name}: {ASSUMED[name]}" for name in kinds))
    priced = PricedOperators(shapes=shapes, rows=rows, assumptions=assumed)
    if not priced.expressed:
        raise _nothing(priced)
    return priced


def _once(calibration: Callable[[Gpu], Calibration]) -> Callable[[Gpu], Calibration]:
    """The same, asked once for every device."""
    by_gpu: dict[str, Calibration] = {}

    def of(gpu: Gpu) -> Calibration:
        if gpu.name not in by_gpu:
            by_gpu[gpu.name] = calibration(gpu)
        return by_gpu[gpu.name]

    return of


def _nothing(priced: PricedOperators) -> InputError:
    """The error for shapes of which none has a prediction."""
    shapes, (reason, *_) = priced.shapes, priced.refused
    if shapes.file:
        must = f"none of its {shapes.num_rows} rows can be priced ({'; '.join(priced.refused)})"
        return InputError(ARGUMENT, Path(shapes.file).name, must)
    statement, _, nearest = reason.partition("; nearest: ")
    name, _, must = statement.partition(" ")
    name = name.rstrip(":")
    if name not in shapes.words:
        return InputError(
            "columns", " ".join(f"{key}={value}" for key, value in shapes.words.items()), statement, nearest
        )
    must = must.removeprefix(shapes.words[name][:40]).removeprefix(":").strip()
    word, _, rest = must.partition(" ")
    if word in ("above", "below"):  # another column
        limit = rest.partition(":")[0]
        must, nearest = f"is {must}", limit if limit.isdigit() else shapes.words.get(limit, "")
    nearest = "1" if "whole number from 1" in must else nearest
    return InputError(name, shapes.words[name], must.replace("is not a ", "must be a ", 1), nearest)


# ------------------------------------------------------------------------------------------- one table


def _priced_targets(
    targets: Targets, calibration: Callable[[Gpu], Calibration], clock: Clock, devices: Devices, notes: list[str]
) -> _UntimedRows:
    """One entry per target: rows of one shape and software are one. What is assumed is added to ``notes``."""
    out = _UntimedRows.empty(len(targets))
    for part in parts_of(targets, devices, out.refuse):
        try:
            calibrated = calibration(part.device).with_kernels(part.work.kernels[0])
            out.put(part.rows, _priced(part, targets.kind.name, calibrated, clock))
            notes += _notes(part, targets.kind.name, calibrated)
        except (InputError, Unexpressed) as why:
            out.refuse(part.rows, str(why))
    return out


def _priced(part: TargetPart, kind: str, calibration: Calibration, clock: Clock) -> JsonDict:
    """What is predicted of rows that are priced together. Raises ``InputError`` or ``Unexpressed``."""
    _check(part, kind)
    gpu, work, ops = part.device, part.work, part.work.operators
    costs = tuple(
        operator_costs([op], gpu, calibration, clock=clock, cluster=work.cluster, eager=work.eager)[0] for op in ops
    )
    pairs, time_s = tuple(zip(ops, costs, strict=True)), total_s(ops, costs)
    whole: Cost | Estimate = costs[0]
    if len(costs) > 1:
        whole = Estimate(graph=OperatorGraph(operators=ops), device=gpu, costs=costs, time_s=time_s)
    terms = {
        f"{bound.value}_s": _sum(getattr(cost, f"{bound.value}_s") * op.count for op, cost in pairs) for bound in Bound
    }
    flops = _sum(op.flops * op.count for op in ops)
    return {
        "time_s": time_s,
        "low_s": whole.low_s,
        "high_s": whole.high_s,
        **terms,
        "flops": flops,
        "bytes_moved": _sum(op.bytes_moved * op.count for op in ops),
        "achieved_flops_per_s": flops / time_s,
        "achieved_bytes_per_s": _sum(_crossing(op) * op.count for op in ops) / time_s,
        "gpu": gpu.name,
        "bound_by": _BOUNDS[np.stack(np.broadcast_arrays(*terms.values())).argmax(axis=0)],
        "source": _sources(pairs),
    }


def _sources(pairs: Sequence[tuple[Operator, Cost]]) -> Any:
    """Of each row."""
    variances = variance_of_each([(op, cost.time_s * op.count * cost.log_sigma) for op, cost in pairs])
    parts = [(cost.fitted, cost.assumed, share) for (_, cost), share in zip(pairs, variances, strict=True)]
    return weakest_source(parts, _sum(variances)).astype(object)


_BOUNDS = np.asarray([bound.value for bound in Bound], dtype=object)


def _sum(parts: Iterable[Floats]) -> Floats:
    total: Floats = 0.0
    for part in parts:
        total = total + part
    return total


def _crossing(op: Operator) -> Floats:
    """Bytes to and from memory; of a collective, those that leave a device in a ring (nccl-tests' bus bandwidth)."""
    if isinstance(op, Collective):
        return volume(op.kind, np.asarray(op.group_size, dtype=np.float64)) * op.message_bytes
    return op.bytes_moved


def _check(part: TargetPart, kind: str) -> None:
    """Raise ``Unexpressed`` for rows that ``sartor gemm`` and ``sartor estimate`` refuse too."""
    gpu = part.device
    if kind == "memory_bound":
        dtype_of(part.words["dtype"])
    for op in part.work.operators:
        dtype = op.dtype if isinstance(op, (Gemm, GroupedGemm, Attention)) else None
        if dtype and not (dtype.weight_only or dtype in gpu.peak_flops_per_s):
            dtypes = ", ".join(peak_dtype.value for peak_dtype in gpu.peak_flops_per_s)
            must = f"{gpu.name} has no matrix rate for it; supported: {dtypes}"
            raise Unexpressed(f"dtype {dtype.value}: {must}; nearest: {gpu.dtype_near(dtype).value}")
        if isinstance(op, Gemm) and op.layout is Layout.TILED and gpu.vendor != "AMD":
            raise Unexpressed(f"layout TILED: is of pre-shuffled weights on AMD GPUs, not of {gpu.name}; nearest: TN")


def _notes(part: TargetPart, kind: str, calibration: Calibration) -> list[str]:
    """What is assumed of these rows' software and types."""
    notes, main = [], part.work.operators[0]
    of_frameworks = kind in ("attention", "moe")
    if isinstance(main, Gemm):
        of_frameworks = bool(frameworks_of_gemms(calibration, main.dtype))
    if isinstance(main, (Gemm, GroupedGemm)) and main.dtype is not (stated := dtype_of(part.words["dtype"])):
        notes.append(widened_note(stated, part.device))
    if calibration.kernels == ANY and of_frameworks:
        names = "|".join(dict.fromkeys(name.partition("_")[0] for name in kernels_measured(calibration)))
        notes.append(
            f"{calibration.gpu}, unknown framework: intervals cover the kernels of all; kernels={names} narrows them"
        )
    return notes


# ------------------------------------------------------------------------------------------- as data


def priced_body(priced: PricedOperators, limit: int | None = None) -> JsonDict:
    """The result keys of ``sartor operators``. Rows count from 1, below the header. With ``limit``, only so many rows
    of every kind, the first."""
    shapes = priced.shapes
    return {
        "file": shapes.file or None,
        "num_rows": shapes.num_rows,
        "expressed": priced.expressed,
        "operators": [row for _, row in sorted(_operators(priced, limit), key=lambda item: item[0])],
        "refused": [
            {"reason": reason, "count": int(rows.size), "rows": (rows[:NAMED] + 1).tolist()}
            for reason, rows in priced.refused.items()
        ],
        "assumptions": list(priced.assumptions),
    }


NAMED = 10
"""Most rows that are named for one reason."""


def _operators(priced: PricedOperators, limit: int | None) -> Iterator[tuple[int, JsonDict]]:
    """Position and entry of every row with a prediction, kind by kind; columns with their usual value are left out."""
    for table, rows in zip(priced.shapes.tables, priced.shapes.rows, strict=True):
        which = np.flatnonzero(priced.rows.texts["reason"][rows] == "")[:limit]
        indices, usual = rows[which], table.kind.optional
        columns = {name: values.tolist() for name, values in _columns(table, which).items()}
        numbers = {name: values[indices].tolist() for name, values in priced.rows.numbers.items()}
        texts = {name: values[indices].tolist() for name, values in priced.rows.texts.items()}
        for i, position in enumerate(indices.tolist()):
            yield (
                position,
                {
                    "row": position + 1,
                    "table": table.kind.name,
                    "gpu": texts["gpu"][i],
                    "shape": {
                        name: column[i] for name, column in columns.items() if column[i] not in ("", usual.get(name))
                    },
                    **{name: values[i] for name, values in numbers.items()},
                    "bound_by": texts["bound_by"][i],
                    "source": texts["source"][i],
                },
            )


def kinds_of(priced: PricedOperators) -> list[JsonDict]:
    """Of every kind of operator with a prediction, in the order of the first rows: how many there are, and the columns
    of their shapes, each with its value if all rows have the same, else None."""
    kinds = []
    for table, rows in zip(priced.shapes.tables, priced.shapes.rows, strict=True):
        which = np.flatnonzero(priced.rows.texts["reason"][rows] == "")
        if which.size:
            columns = {"gpu": priced.rows.texts["gpu"][rows[which]], **_columns(table, which)}
            kind = {
                "table": table.kind.name,
                "count": int(which.size),
                "columns": _shared(columns, table.kind.optional),
            }
            kinds.append((int(rows[which[0]]), kind))
    return [kind for _, kind in sorted(kinds, key=lambda item: item[0])]


def _shared(columns: Mapping[str, Words | Floats64], usual: JsonMap) -> JsonDict:
    """The value that all rows share, or None, of columns with another than the usual one, in the order of the first."""
    unusual = {name: column != usual.get(name) for name, column in columns.items()}
    unusual |= {name: (column != "") & unusual[name] for name, column in columns.items() if column.dtype == object}
    names = sorted(
        (name for name, where in unusual.items() if where.any()), key=lambda name: int(unusual[name].argmax())
    )
    return {name: columns[name][0] if np.all(columns[name] == columns[name][0]) else None for name in names}


def _columns(table: Table, which: Index) -> dict[str, Words | Floats64]:
    """The columns of these rows of a table that describe their shapes."""
    words = {name: column.take(which).plain() for name, column in table.coded.items() if name != "gpu"}
    numbers = {name: values[which] for name, values in table.numbers.items()}
    return {**{name: np.asarray([*values, None], dtype=object)[:-1] for name, values in words.items()}, **numbers}


def predicted_columns(priced: PricedOperators) -> dict[str, list[Any]]:
    """The columns that a written file has beside its own: microseconds, TFLOP/s and GB/s; None where a row has none."""
    units = {"us": ("time_s", 1e6), "low_us": ("low_s", 1e6), "high_us": ("high_s", 1e6)}
    units |= {"tflops": ("achieved_flops_per_s", 1e-12), "gb_per_s": ("achieved_bytes_per_s", 1e-9)}
    numbers = {
        name: [_rounded(v * unit) for v in priced.rows.numbers[key].tolist()] for name, (key, unit) in units.items()
    }
    texts = {name: [word or None for word in priced.rows.texts[name].tolist()] for name in TEXTS}
    return {f"predicted_{name}": values for name, values in {**numbers, **texts}.items()}


def _rounded(value: float) -> float | None:
    """Six significant digits; None for a rate of nothing."""
    return float(f"{value:.6g}") if np.isfinite(value) and value > 0 else None
