"""Predictions for every target, with the plain roofline for comparison: arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import Calibration, Clock, load_calibration
from sartor.cost.cost import Cost
from sartor.cost.gpu.memory_bound import takes_law
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.cost.price import Estimate, operator_costs, price, total_s
from sartor.hardware.cluster import own_links
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.operators import (
    Attention,
    Collective,
    CollectiveKind,
    DType,
    Gemm,
    GroupedGemm,
    MemoryBound,
    Operator,
    OperatorGraph,
)
from sartor.records.rows import RowWork, Unexpressed, outside, work_of
from sartor.records.strangers import LEAST, MOST_IMPOSSIBLE, OTHER_UNIT, Timed, likelier, of_another_unit, strangers
from sartor.records.tables import Coded, Floats64, Index, TableKind
from sartor.records.targets import Devices, Targets, combine, device_of, model_work
from sartor.units import Floats

IMPOSSIBLE = 1.1
"""A row this many times faster than the datasheet allows has wrong units or a wrong label (data/measured/README.md
flags such rows by the same factor)."""

_TOO_FAST = f"faster than {IMPOSSIBLE} x what the datasheet allows"


def too_fast(kind: TableKind) -> str:
    """The reason for rows faster than possible, which asks for the unit of the column of their table."""
    unit = "TFLOP/s" if kind.measured.endswith("tflops") else "microseconds"
    return f"{_TOO_FAST}: is {kind.measured} in {unit}?"


SHARP = 0.12
"""Above this standard deviation, predictions cannot distinguish a defect of the table from their own error: an estimate
(no row of data/measured and data/measured_amd with flag 0 is taken for a defect, 2026-11-24)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One entry per target; NaN if ``reason`` gives why there is no prediction."""

    targets: Targets
    time_s: Floats64
    log_sigma: Floats64
    roofline_s: Floats64
    work: Floats64
    """FLOPs, or bytes if there are none: shapes of near-equal work are ranked against each other."""
    reason: Index
    """Index into ``reasons``; 0 has a prediction."""
    reasons: tuple[str, ...]
    calibration: Coded
    """Source of the coefficients: ``own``, ``joint``, ``borrowed from NAME`` or ``generation``."""
    clock: Clock
    own: Calibration | None = None
    """The user's calibration, used for targets of its device."""
    devices: Devices = field(default_factory=dict)
    """The user's datasheets."""
    remarks: tuple[str, ...] = ()
    """What is said of all rows of a device and type together."""
    too_fast: int = 0
    """Rows faster than possible that were left out of medians with others of their shape."""

    @property
    def expressed(self) -> Any:
        return self.reason == 0


@dataclass(slots=True)
class _Filling:
    """A ``Predicted`` under construction."""

    size: int
    reasons: dict[str, int] = field(default_factory=lambda: {"": 0})
    owners: dict[str, int] = field(default_factory=lambda: {"": 0})
    reason: Any = None
    owner: Any = None
    values: Any = None
    remarks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reason = np.zeros(self.size, dtype=np.int64)
        self.owner = np.zeros(self.size, dtype=np.int64)
        self.values = np.full((5, self.size), np.nan)

    def refuse(self, rows: Index, reason: str) -> None:
        self.reason[rows] = self.reasons.setdefault(reason, len(self.reasons))


def predict(
    targets: Targets,
    clock: Clock = Clock.BOOST,
    own_calibration: Calibration | None = None,
    devices: Devices | None = None,
) -> Predicted:
    """Predictions for all targets of one kind of table.

    Rows that share words (device, dtype, phase, ...) are evaluated together. ``clock`` is the table's: boost for short
    runs; ``max_matmul`` has rates found in long searches and is always sustained. ``own_calibration`` replaces the
    catalogue's calibration of its device; ``devices`` are datasheets that the catalogue lacks, by the tables' names
    for them.
    """
    clock = Clock.SUSTAINED if targets.kind.name == "max_matmul" else clock
    out, sheets = _Filling(len(targets)), devices or {}
    for part in parts_of(targets, sheets, out.refuse):
        try:
            _fill(out, targets, part, clock, own_calibration)
        except Unexpressed as why:
            out.refuse(part.rows, str(why))
    time_s, sigma, roofline, work, least_s = out.values
    undecided = (targets.least_s < least_s) & (targets.most_s >= least_s)
    if undecided.any():
        rest = targets.without_faster(np.where(undecided, least_s, 0.0))
        lost = int((targets.rows - rest.rows).sum())
        return replace(predict(rest, clock, own_calibration, devices), too_fast=lost)
    return Predicted(
        targets=targets,
        time_s=time_s,
        log_sigma=sigma,
        roofline_s=roofline,
        work=work,
        reason=out.reason,
        reasons=tuple(out.reasons),
        calibration=Coded(codes=out.owner, values=tuple(out.owners)),
        clock=clock,
        own=own_calibration,
        devices=sheets,
        remarks=tuple(dict.fromkeys(out.remarks)),
    )


def explain(predicted: Predicted, i: int) -> JsonMap:
    """Explanation of one target's prediction: its terms, what bounds its largest operator, how far the residual moved
    it, tile and waves of a GEMM, and the source of the coefficients."""
    targets = predicted.targets
    words, sizes = targets.words(i), targets.sizes(i)
    gpu = device_of(str(words["gpu"]), predicted.devices)
    work = _work(targets.kind.name, words, sizes, gpu)
    gpu = work.cluster.gpu if work.cluster else gpu
    calibration = _calibration_of(gpu, predicted.own).with_kernels(work.kernels[len(work.kernels) // 2])
    costs = [(op, _cost_of(op, work, gpu, calibration, predicted.clock)) for op in work.operators]
    op, cost = max(costs, key=lambda pair: float(pair[1].time_s * pair[0].count))
    terms = {term: sum(float(getattr(c, term)) * o.count for o, c in costs) for term in TERMS}
    whole = sum(float(c.time_s) * o.count for o, c in costs)
    largest = {"largest": f"{op.name} {float(cost.time_s) * op.count / whole:.0%}"} if len(costs) > 1 else {}
    details = {k: cost.details[k] for k in ("residual", "tile_m", "tile_n", "split_k", "waves") if cost.details.get(k)}
    return {
        "bound_by": cost.bound_by.value,
        **largest,
        **terms,
        **{k: round(float(v), 6) for k, v in details.items()},
        "calibration": str(predicted.calibration.values[predicted.calibration.codes[i]]),
    }


TERMS = ("compute_s", "memory_s", "network_s", "overhead_s")


def _calibration_of(gpu: Gpu, own_calibration: Calibration | None = None) -> Calibration:
    """Calibration of a device; the user's own if it is for this one."""
    return own_calibration if own_calibration and own_calibration.gpu == gpu.name else load_calibration(gpu)


def _cost_of(
    op: Operator, work: RowWork, gpu: Gpu, calibration: Calibration, clock: Clock, details: bool = True
) -> Cost:
    """Cost of one operator under the conditions its row was timed in: the price that it has in every command. Kernels
    timed one by one in fp32 were launched by the host."""
    calibrated = replace(calibration, host_launches=work.eager or not work.tokens)
    cluster, eager = work.cluster, work.eager
    return operator_costs([op], gpu, calibrated, clock=clock, details=details, cluster=cluster, eager=eager)[0]


# ------------------------------------------------------------------------------------------- one set of rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPart:
    """Targets that are priced together: they share all words, so that their sizes are arrays of the same operators."""

    rows: Index
    words: JsonMap
    work: RowWork
    gpu: Gpu
    """The device of the rows' label."""

    @property
    def device(self) -> Gpu:
        """The device that runs them: of collectives that name a machine, the machine's."""
        return self.work.cluster.gpu if self.work.cluster else self.gpu


def parts_of(targets: Targets, devices: Devices, refuse: Callable[[Index, str], None]) -> Iterator[TargetPart]:
    """Targets by the words that they share, with the operators that they ran; ``refuse`` is told the others."""
    for rows, words in _alike(targets):
        try:
            gpu, good = device_of(str(words["gpu"]), devices), np.ones(rows.size, dtype=bool)
            for mask, reason in outside(targets.kind.name, words, _sizes(targets, rows), gpu):
                bad = np.broadcast_to(mask, rows.shape)
                refuse(rows[bad], reason)
                good &= ~bad
        except Unexpressed as why:
            refuse(rows, str(why))
            continue
        for part in _parts(targets.kind.name, rows[good]):
            try:
                work = _work(targets.kind.name, words, _sizes(targets, part), gpu)
            except Unexpressed as why:
                refuse(part, str(why))
            else:
                yield TargetPart(rows=part, words=words, work=work, gpu=gpu)


def _sizes(targets: Targets, rows: Index) -> JsonMap:
    return {name: values[rows] for name, values in targets.numbers.items()}


def _alike(targets: Targets) -> Iterator[tuple[Index, JsonDict]]:
    """Positions of targets that share all words, with the words."""
    shared = [column for name, column in targets.coded.items()]
    codes = combine([column.codes for column in shared]) if shared else np.zeros(len(targets), dtype=np.int64)
    order = np.argsort(codes, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        yield rows, targets.words(int(rows[0]))


def _fill(out: _Filling, targets: Targets, part: TargetPart, clock: Clock, own_calibration: Calibration | None) -> None:
    rows, work, device = part.rows, part.work, part.device
    calibration = _calibration_of(device, own_calibration)
    time_s, sigma = _seconds(work, device, calibration, clock)
    roofline, least_s, amount = _bounds(work, device)
    out.values[:, rows] = [
        np.broadcast_to(v, rows.shape) for v in (time_s, sigma, roofline, amount, least_s / IMPOSSIBLE)
    ]
    out.refuse(rows[targets.measured_s[rows] < out.values[4, rows]], too_fast(targets.kind))
    timed, rows_of = _timed(targets, rows, part.words, device, calibration, clock, time_s)
    if timed is None and targets.kind.name in JUDGED and rows_of.size:
        out.refuse(rows_of[of_another_unit(targets.measured_s[rows_of], out.values[0, rows_of])], OTHER_UNIT)
    if timed is not None:
        out.remarks += _whole(timed, out, rows_of, np.broadcast_to(sigma, rows.shape), targets)
        if np.median(sigma) < SHARP:
            for reason, where in strangers(timed):
                out.refuse(rows_of[where], reason)
    owner = _owner(targets.kind.name, work, calibration.with_kernels(work.kernels[0]))
    out.owner[rows] = out.owners.setdefault(owner, len(out.owners))


def _whole(timed: Timed, out: _Filling, rows: Index, log_sigma: Any, targets: Targets) -> list[str]:
    """What is said of rows of one device and type together, where they are most of those: a kernel of its own may be
    off by what another device is."""
    kind = targets.kind
    alike = [column.codes == column.codes[rows[0]] for name in ("gpu", "dtype") if (column := targets.coded[name])]
    if rows.size < MOST_OF_THEM * np.logical_and(*alike).sum():
        return []
    subject = f"{kind.name} of {timed.gpu.name}, {timed.dtype.value}"
    likelier_device = likelier(timed, log_sigma)
    fast = int((out.reason[rows] == out.reasons.get(too_fast(kind), -1)).sum())
    remarks = [f"{subject}: {likelier_device.sentence(timed.gpu)}"] if likelier_device else []
    if rows.size >= LEAST and fast > MOST_IMPOSSIBLE * rows.size:
        remarks.append(
            f"{subject}: {fast} of {rows.size} shapes are faster than its datasheet allows, too many to fit the rest"
        )
    return remarks


def _timed(
    targets: Targets, part: Index, words: JsonMap, gpu: Gpu, calibration: Calibration, clock: Clock, time_s: Floats
) -> tuple[Timed | None, Index]:
    """The rows whose claim can be checked, and where they are; None if the device itself was not measured. Of GEMMs
    only single ones, so that errors of a borrowed calibration or of batches are not taken for defects of the table."""
    kind, numbers = targets.kind.name, targets.numbers
    judged = np.flatnonzero(numbers["batch"][part] == 1) if kind == "gemm" else np.arange(part.size)
    rows = part[judged]
    if kind not in JUDGED or judged.size == 0:
        return None, rows

    def work_on(device: Gpu, rows_used: Index) -> RowWork:
        return _work(kind, words, {name: values[rows[rows_used]] for name, values in numbers.items()}, device)

    def on(device: Gpu, rows_used: Index) -> Any:
        work = work_on(device, rows_used)
        time_s, _ = _seconds(work, device, _calibration_of(device), clock)
        return np.broadcast_to(time_s, rows_used.shape)

    main = _main(work_on(gpu, np.arange(1)))
    dtype = getattr(main, "dtype", None) or DType.BF16
    section = _SECTIONS.get(kind, f"gemm.{dtype.value}")
    if section not in calibration.calibrated:
        return None, rows
    sizes = [np.log(np.maximum(values[rows], 1).astype(np.float64)) for values in numbers.values()]
    timed = Timed(
        gpu=gpu,
        dtype=dtype,
        section=section,
        sizes=np.stack([column for column in sizes if np.ptp(column) > 0] or sizes[:1]),
        measured_s=targets.measured_s[rows],
        predicted_s=np.broadcast_to(time_s, part.shape)[judged],
        predict=on,
    )
    return timed, rows


MOST_OF_THEM = 0.5
"""Least share of the rows of a device and type that rows alike must be before anything is said of all of them."""

JUDGED = ("gemm", "max_matmul", "attention", "memory_bound", "moe")
"""Tables whose rows are compared with the rest of their table."""


def _parts(kind: str, rows: Index) -> list[Index]:
    """All rows at once; whole models one by one, since their size changes their structure."""
    if kind == "layer_and_model":
        return [rows[i : i + 1] for i in range(rows.size)]
    return [rows] if rows.size else []


def _work(kind: str, words: JsonMap, sizes: JsonMap, gpu: Gpu) -> RowWork:
    return model_work(words, sizes) if kind == "layer_and_model" else work_of(kind, words, sizes, gpu)


def _seconds(work: RowWork, gpu: Gpu, calibration: Calibration, clock: Clock) -> tuple[Floats, Floats]:
    by_kernel = {
        kernel: _priced(work, gpu, calibration.with_kernels(kernel), clock) for kernel in dict.fromkeys(work.kernels)
    }
    rows = [by_kernel[kernel] for kernel in work.kernels]
    return np.median([kernel.time_s for kernel in rows], axis=0), np.median(
        [kernel.log_sigma for kernel in rows], axis=0
    )


def _priced(work: RowWork, gpu: Gpu, calibration: Calibration, clock: Clock) -> Cost | Estimate:
    if len(work.operators) == 1:
        return _cost_of(work.operators[0], work, gpu, calibration, clock, details=False)
    graph = OperatorGraph(operators=work.operators, tokens=work.tokens)
    if work.tokens:
        calibrated = replace(calibration, host_launches=work.eager)
        return price(graph, gpu, calibrated, clock=clock, details=False, eager=work.eager)
    # Kernels that a benchmark repeats, which may find their weights in L2.
    costs = tuple(_cost_of(op, work, gpu, calibration, clock, details=False) for op in work.operators)
    return Estimate(graph=graph, device=gpu, costs=costs, time_s=total_s(work.operators, costs))


def _bounds(work: RowWork, gpu: Gpu) -> tuple[Floats, Floats, Floats]:
    """Plain roofline (per operator the longer of FLOPs at peak and bytes at full bandwidth), the smallest time possible
    on any such device (bytes that fit in L2 are free, and links may be twice as fast as in the datasheet, since a row's
    machine may have others), and the work."""
    roofline: Floats = 0.0
    least_s: Floats = 0.0
    flops: Floats = 0.0
    moved: Floats = 0.0
    for op in work.operators:
        fastest = op.flops / _peak(op, gpu)
        stream = op.bytes_moved / gpu.hbm_bytes_per_s
        if isinstance(op, Collective):
            link = (work.cluster or own_links(gpu)).tiers[0].bytes_per_s
            stream = op.bytes_moved * _bus(op) / link
            fastest = op.bytes_moved * np.minimum(_bus(op), 1.0) / (2 * max(link, 64e9))
        roofline = roofline + np.maximum(fastest, stream) * op.count
        spill = np.maximum(op.bytes_moved - gpu.l2_bytes - gpu.memory_side_cache_bytes, 0) / gpu.hbm_bytes_per_s
        # Windows skip attention keys, routing skips experts, and a collective's bytes are not HBM traffic.
        may_stay = isinstance(op, (Attention, Collective)) or len(work.operators) > 1
        least_s = least_s + (fastest if may_stay else np.maximum(fastest, spill)) * op.count
        flops, moved = flops + op.flops * op.count, moved + op.bytes_moved * op.count
    return roofline, least_s, np.where(flops > 0, flops, moved)


def _peak(op: Operator, gpu: Gpu) -> float:
    if isinstance(op, (Gemm, GroupedGemm, Attention)):
        return peak_flops_per_s(gpu, op.dtype)
    return float("inf")


def _bus(op: Collective) -> Floats:
    """Share of the buffer that crosses a device's links (data/measured/README.md: busbw)."""
    n = np.asarray(op.group_size, dtype=np.float64)
    if op.kind is CollectiveKind.SEND_RECV:
        return 1.0
    return (2 if op.kind is CollectiveKind.ALL_REDUCE else 1) * (n - 1) / n


def _main(work: RowWork) -> Operator:
    """The operator that determines the calibration: a GEMM if there is one."""
    return next((op for op in work.operators if isinstance(op, (Gemm, GroupedGemm))), work.operators[0])


_SECTIONS = {"moe": "grouped", "attention": "attention", "memory_bound": "memory_bound", "collectives": "collective"}


def _owner(kind: str, work: RowWork, calibration: Calibration) -> str:
    """Source of the main operator's coefficients."""
    main = _main(work)
    if isinstance(main, MemoryBound) and takes_law(main, calibration):
        return calibration.owner("torch_streams")
    dtype = main.dtype if isinstance(main, (Gemm, GroupedGemm)) else DType.BF16
    return calibration.owner(_SECTIONS.get(kind, f"gemm.{dtype.value}"))
