"""The GEMMs of a user's file that measure what they say: one device, one type, one entry per shape.

What cannot be a measurement of its shape on the device (another GPU's rows, another unit, a copied column, a rate above
the datasheet's) is left out, counted and named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from sartor.calibrate.fit import Index, Products, packaged, packaged_seconds
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.gpu.rates import peak_flops_per_s
from sartor.errors import InputError, MissingExtraError
from sartor.hardware.catalog import canonical, load_gpu
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.operators import DType, Layout
from sartor.records.rows import Unexpressed, dtype_of, layout_word
from sartor.records.strangers import MOST_IMPOSSIBLE, Timed, likelier, strangers
from sartor.records.tables import Coded, Table, read_table
from sartor.records.targets import Targets, combine, contradictions, known, targets_of
from sartor.units import FloatArray

LEAST_ROWS = 10
"""Fewest shapes that a fit is made of."""

ABOVE_PEAK = 1.1
"""Clocks exceed the datasheet's boost clock by this factor at most; faster rows can't be measurements of their GEMM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The usable GEMMs of a file, one entry per shape (median of its rows)."""

    source: str
    products: Products
    measured_s: FloatArray
    rows: int
    """Rows of the file that went into the medians."""
    apart: FloatArray
    """Largest |ln(row / median)| of a shape's rows, where repeats contradict each other; else 0."""
    date: str
    """The newest of the file's ``date`` column; empty where it has none."""
    left_out: Mapping[str, int]
    """Number of unused rows by reason."""
    made_with: Mapping[str, str] = field(default_factory=dict)
    """Driver and library versions given in the file (`SOFTWARE`), several values joined."""
    remarks: tuple[str, ...] = ()
    """Which shapes were left out as no measurements of what they say."""


def read_records(path: str | Path, gpu: str | None = None, dtype: str | None = None) -> Records:
    """The usable GEMMs of one device and dtype in a file; the rest is counted with its reason.

    Raises ``InputError`` for a file that cannot be read, lacks columns or usable rows, or holds several devices or
    dtypes and none is chosen.
    """
    table = _table(Path(path))
    targets = _each_row(table)
    left_out = dict(table.left_out)
    labels = {name: [str(value) for value in targets.coded[name].plain()] for name in ("gpu", "dtype")}
    device, of_gpu = _device(labels["gpu"], gpu, targets.rows, Path(path))
    kind, of_dtype = _dtype(labels["dtype"], of_gpu, dtype, Path(path).name, left_out, targets.rows)
    layouts = _layouts(targets)
    usable = of_gpu & of_dtype
    if lost := int((usable & (layouts == "")).sum()):
        left_out["layout is not TN, NN, NT or TILED"] = lost
    if lost == usable.sum():
        raise _too_few(0, device, kind, left_out, Path(path).name)
    read = np.flatnonzero(usable & (layouts != ""))
    products = _products(targets, device, kind, layouts).part(read)
    good, by_reason, remarks = _judged(products, targets.measured_s[read], Path(path).name)
    usable = np.zeros(len(targets), dtype=bool)
    usable[read[good]] = True
    left_out = {name: left_out.get(name, 0) + by_reason.get(name, 0) for name in (*left_out, *by_reason)}
    left_out |= {f"gpu is not {device.name}": int((~of_gpu).sum())} if not of_gpu.all() else {}
    merged = _merged(table, np.asarray(targets.coded[ROW].plain())[usable])
    if len(merged) < LEAST_ROWS:
        raise _too_few(len(merged), device, kind, left_out, Path(path).name)
    apart, contradicted = contradictions(merged)
    return Records(
        source=Path(path).name,
        apart=apart,
        products=_products(merged, device, kind, _layouts(merged)),
        measured_s=merged.measured_s,
        rows=int(usable.sum()),
        date=_newest(table),
        left_out=left_out,
        made_with={name: versions for name in SOFTWARE if (versions := _values(table, name))},
        remarks=(*([table.untimed] if table.untimed else []), *remarks, *contradicted),
    )


def _judged(products: Products, measured_s: FloatArray, file: str) -> tuple[Any, dict[str, int], list[str]]:
    """Which rows measure what they say, how many do not by reason, and what is said of them. Raises ``InputError``
    where so many are faster than the datasheet allows that the rest cannot be trusted."""
    device, kind, tokens = products.gpu, products.dtype, products.batch * products.m
    predicted_s, log_sigma = packaged(products)
    timed = Timed(
        gpu=device,
        dtype=kind,
        section=f"gemm.{kind.value}",
        sizes=np.log(np.stack([tokens, products.n, products.k]).astype(np.float64)),
        measured_s=measured_s,
        predicted_s=predicted_s,
        predict=lambda other_device, indices: packaged_seconds(replace(products.part(indices), gpu=other_device)),
    )
    too_fast = 2.0 * tokens * products.n * products.k / measured_s > ABOVE_PEAK * peak_flops_per_s(device, kind)
    cache_bytes = device.l2_bytes + device.memory_side_cache_bytes
    spilled = products.batch * (products.m + products.n) * products.k * kind.bytes - cache_bytes
    read_fast = measured_s * ABOVE_PEAK < spilled / device.hbm_bytes_per_s
    _check_copies(timed, file)
    other_device = likelier(timed, log_sigma)
    if other_device is None and (share := float(too_fast.mean())) > 0.5:
        must = f"must be microseconds: {share:.0%} of shapes would run above {device.name}'s {kind.value} peak"
        raise InputError("latency_us", file, must)
    remarks, left_out = [other_device.sentence(device)] if other_device else [], dict[str, int]()
    good = np.ones(len(products), dtype=bool)
    for reason, mask in (*strangers(timed), (TOO_FAST, too_fast), (READ_FAST, read_fast)):
        where = np.flatnonzero(mask & good)
        if where.size:
            left_out[reason] = left_out.get(reason, 0) + where.size
            remarks.append(f"latency_us of {_shapes(products.part(where))}: {reason}")
        good[where] = False
    by_peak, by_memory = (left_out.get(reason, 0) for reason in (TOO_FAST, READ_FAST))
    if by_peak + by_memory > MOST_IMPOSSIBLE * len(products):
        must = (
            f"must be times of {device.name}: {by_peak + by_memory} of {len(products)} rows are faster than its "
            f"datasheet allows ({by_peak} by its {kind.value} peak, {by_memory} by its memory)"
        )
        raise InputError("latency_us", file, must, other_device.gpu.name if other_device else "")
    if other_device is None:
        remarks += [
            *_columns_exchanged(products.part(good), measured_s[good]),
            *_all_slow(timed, measured_s[good] / predicted_s[good]),
        ]
    return good, left_out, remarks


def _check_copies(timed: Timed, file: str) -> None:
    """Raises ``InputError`` where most rows have one and the same time, for shapes that cannot all take as long."""
    times, which, counts = np.unique(timed.measured_s, return_inverse=True, return_counts=True)
    often = int(counts.argmax())
    shortest, longest = np.quantile(timed.predicted_s[which == often], (0.1, 0.9))
    if counts[often] >= LEAST_ROWS and counts[often] > 0.5 * which.size and longest > UNLIKE_TIMES * shortest:
        must = (
            f"must be each shape's own time: {counts[often]} of {which.size} rows have the same {1e6 * times[often]:g} "
            f"us, for shapes predicted to take {1e6 * shortest:.3g} to {1e6 * longest:.3g} us (a copied column?)"
        )
        raise InputError("latency_us", file, must)


UNLIKE_TIMES = 3.0
"""Ratio of predicted times that a coarse clock does not explain (assumed)."""


def _columns_exchanged(products: Products, measured_s: FloatArray) -> Iterator[str]:
    """What is said of rows that fit much better with m, n and k in another order."""
    sample = np.linspace(0, len(products) - 1, min(len(products), SOME)).astype(np.int64)
    part, off = products.part(sample), {}
    for order in permutations("mnk"):
        sizes = {name: getattr(part, column) for name, column in zip("mnk", order, strict=True)}
        off[order] = float(np.median(np.abs(np.log(packaged_seconds(replace(part, **sizes)) / measured_s[sample]))))
    stated_order, best = off[*"mnk",], min(off, key=lambda order: off[order])
    if off[best] < min(stated_order / UNLIKE_TIMES, LIKE_ONE):
        yield (
            f"m, n, k: the rows fit much better with {', '.join(best)} in their place (median error "
            f"{np.expm1(off[best]):.0%}, as given {np.expm1(stated_order):.0%}): are the columns exchanged?"
        )


SOME, LIKE_ONE = 300, 0.2
"""Rows that are looked at; the largest median error of an order of columns that is believed (assumed: calibrated GPUs
are 2 to 16% off)."""


def _all_slow(timed: Timed, ratio: FloatArray) -> Iterator[str]:
    """What is said of times that no GPU's own software explains: a fit would take them as they are."""
    lowest, middle = (float(np.quantile(ratio, q)) for q in (0.05, 0.5)) if ratio.size else (0.0, 0.0)
    calibrated = timed.section in load_calibration(timed.gpu).calibrated
    if lowest > (SLOW_CALIBRATED if calibrated else SLOW):
        yield (
            f"latency_us: nearly all rows take {lowest:.3g} times what is predicted or more (median {middle:.3g}): a "
            "shared or throttled GPU, or more than the GEMM in each time?"
        )


SLOW, SLOW_CALIBRATED = 3.0, 1.5
"""Times this many times too long in 95% of rows are those of a throttled or shared device, of more than the GEMM, or
of another unit (assumed); the second where GEMMs of this GPU and type were measured."""


def _too_few(shapes: int, device: Gpu, kind: DType, left_out: Mapping[str, int], file: str) -> InputError:
    why = "; ".join(f"{count:,} rows: {reason}" for reason, count in left_out.items())
    must = f"must hold at least {LEAST_ROWS} usable shapes of {device.name} {kind.value} and holds {shapes}"
    return InputError("records", file, must + (f" ({why})" if why else ""))


ROW = "row"
"""The column that keeps every row of a table apart."""


def _each_row(table: Table) -> Targets:
    """Every row by itself, so that a row is judged before it goes into a median with others of its shape."""
    rows = np.arange(table.measured.size, dtype=np.int64)
    return targets_of(
        [replace(table, coded={**_shape_words(table), ROW: Coded(codes=rows, values=tuple(rows.tolist()))})]
    )


def _merged(table: Table, rows: Index) -> Targets:
    """One target per shape, the median of those of ``rows`` that have it."""
    coded = {name: column.take(rows) for name, column in _shape_words(table).items()}
    numbers = {name: values[rows] for name, values in table.numbers.items()}
    return targets_of([replace(table, coded=coded, numbers=numbers, measured=table.measured[rows])])


def _shape_words(table: Table) -> dict[str, Coded]:
    return {name: column for name, column in table.coded.items() if name not in BESIDE}


def _products(targets: Targets, device: Gpu, kind: DType, layouts: Any) -> Products:
    whole = {name: targets.numbers[name].astype(np.int64) for name in ("batch", "m", "n", "k")}
    return Products(gpu=device, dtype=kind, layouts=layouts, **whole)


def _layouts(targets: Targets) -> Any:
    alike = combine([column.codes for name, column in targets.coded.items() if name != ROW])
    _, first, which = np.unique(alike, return_index=True, return_inverse=True)
    return np.asarray([_layout(targets.words(int(i))) for i in first])[which]


FEW = 3


def _shapes(products: Products) -> str:
    """The first shapes, m x n x k, and how many more there are."""
    sizes = zip(products.m[:FEW], products.n[:FEW], products.k[:FEW], strict=True)
    rest = f" and {len(products) - FEW:,} more" if len(products) > FEW else ""
    return ", ".join(f"{m} x {n} x {k}" for m, n, k in sizes) + rest


SOFTWARE = ("driver", "framework", "framework_version", "library_version")
"""Columns that name the software; kept so that two calibrations show what changed between them."""
BESIDE = ("date", *SOFTWARE)
"""Columns that are no part of a shape: rows that differ only in these are measurements of the same shape."""
TOO_FAST = "a rate above the device's peak"
READ_FAST = "operands read faster than the device's memory (another device's rows?)"


def _table(path: Path) -> Table:
    try:
        import pyarrow  # noqa: F401 - only to see whether it is installed
    except ImportError:
        raise MissingExtraError("reading tables of measurements", "data") from None
    if not path.is_file() or path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError("records", str(path), "must be a .csv or .parquet file that exists")
    table = read_table(path, BESIDE, kind_name="gemm")
    if table.kind.name != "gemm":
        kind = table.kind.name.replace("_", "-")
        must = f"must hold GEMMs (m, n, k), not {kind} rows alone: attention and kernels are fitted beside GEMMs"
        raise InputError("records", path.name, must)
    return table


def _device(labels: Sequence[str], name: str | None, rows: Index, path: Path) -> tuple[Gpu, Any]:
    """The file's only device, or the one chosen by ``name``, and the mask of its rows."""
    file = path.name
    named = {label: _name(label) for label in dict.fromkeys(labels)}
    names = sorted(set(named.values()))
    if name is None:
        if len(names) > 1:
            must = f"holds {len(names)} devices; choose one with --gpu"
            raise InputError("gpu", file, must, ", ".join(names[:8]))
        return _of_name(names[0], path), np.ones(len(labels), dtype=bool)
    device = load_gpu(name)
    mine = {label for label in named if named[label] == device.name or canonical(label) == canonical(device.name)}
    where = np.asarray([label in mine for label in labels])
    if not where.any():
        raise InputError("gpu", name, f"has no row in {file}", ", ".join(names[:8]))
    return device, where


def _of_name(name: str, path: Path) -> Gpu:
    """The catalogue's device, else the datasheet that ``sartor measure`` wrote beside its records."""
    beside = path.with_suffix(".gpu.toml")
    try:
        return load_gpu(name)
    except InputError as why:
        if not beside.is_file():
            must = f"{name} is not in the catalogue; name its datasheet with --gpu (sartor measure writes one)"
            raise InputError("gpu", path.name, must, why.nearest or f"--gpu {beside.name}") from None
    device = load_gpu(str(beside))
    if device.name != name:
        raise InputError(
            "gpu",
            path.name,
            f"has measurements of {name}, and {beside.name} describes {device.name}; choose with --gpu",
        )
    return device


def _name(label: str) -> str:
    """The catalogue's name for a label; the label itself if the catalogue does not know it."""
    try:
        return known(label).name
    except Unexpressed:
        return label


def _dtype(
    labels: Sequence[str], of_gpu: Any, name: str | None, file: str, left_out: dict[str, int], rows: Index
) -> tuple[DType, Any]:
    read: dict[str, DType | None] = {}
    for label in dict.fromkeys(labels):
        try:
            read[label] = dtype_of(label)
        except Unexpressed as why:
            read[label] = None
            left_out[str(why)] = int(rows[np.asarray([value == label for value in labels]) & of_gpu].sum())
    readable = sorted({kind.value for kind in (read[labels[int(i)]] for i in np.flatnonzero(of_gpu)) if kind})
    if name is not None:
        try:
            dtype = dtype_of(name)
        except Unexpressed as why:
            raise InputError("dtype", name, str(why), ", ".join(readable)) from None
        if dtype.value not in readable:
            raise InputError("dtype", name, f"has no row in {file}", ", ".join(readable))
    elif len(readable) == 1:
        dtype = DType(readable[0])
    elif not readable:
        raise InputError("dtype", file, "holds no dtype that a product can have", ", ".join(d.value for d in DType))
    else:
        raise InputError("dtype", file, "holds several; choose one with --dtype", ", ".join(readable))
    where = np.asarray([read[label] is dtype for label in labels])
    if (others := int(rows[of_gpu & ~where].sum())) and len(readable) > 1:
        left_out[f"dtype is not {dtype.value}"] = others
    return dtype, where


def _layout(words: JsonMap) -> str:
    """The layout of a row; empty for an unknown one."""
    word = layout_word(words)
    return word if word in Layout.__members__ else ""


def _newest(table: Table) -> str:
    column = table.coded.get("date")
    if column is None:
        return ""
    return max((str(column.values[code])[:10] for code in np.unique(column.codes)), default="")


def _values(table: Table, name: str) -> str:
    """The distinct values of a column, joined; only the first three if there are more."""
    column = table.coded.get(name)
    if column is None:
        return ""
    words = sorted({str(column.values[code]) for code in np.unique(column.codes)} - {"", "None"})
    return ", ".join(words[:3]) + (", ..." if len(words) > 3 else "")
