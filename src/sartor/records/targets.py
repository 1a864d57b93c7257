"""Rows of tables as targets of predictions, one operator or a whole published model each.

Targets to compare predictions with: one per device, dtype and shape, the median of its rows.

The same shape is measured by several frameworks and versions; their spread is noise that no prediction can remove.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from sartor.cost.correction.calibration import TORCH
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.model.editing import edit
from sartor.model.lower import lower
from sartor.model.lower.setting import Kernels
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, ParallelDims, Phase, Workload
from sartor.model.zoo import load_model
from sartor.records.rows import RowWork, Unexpressed, dtype_of, kernel_family
from sartor.records.tables import Coded, Floats64, Index, Table, TableKind
from sartor.units import FloatArray, Floats, Ints

Devices = Mapping[str, Gpu]
"""A user's own datasheets, by the label used in tables."""


def device_of(name: str, own_devices: Devices) -> Gpu:
    """A device by a table's label; the user's own datasheets take precedence. Raises ``Unexpressed``."""
    return own_devices[name] if name in own_devices else known(name)


@cache
def known(name: str) -> Gpu:
    """A device by a table's label, or by a path to its datasheet. Raises ``Unexpressed``, naming the nearest match, for
    a label the catalogue lacks."""
    try:
        return load_gpu(name if name.endswith(".toml") else _spelled(name))
    except InputError as error:
        nearest = f"; nearest: {error.nearest}" if error.nearest else ""
        raise Unexpressed(f"gpu {name[:40]}: not in the catalogue{nearest}") from None


def _spelled(name: str) -> str:
    """A table's label in the catalogue's spelling, without the memory size or extra word that some add:
    ``GB200-186GB``, ``Tesla_T4``, ``NVIDIA GH200 SXM``, ``RTX-PRO-6000-Blackwell-Server-96GB``, ``MI250x-one-GCD``."""
    try:
        return load_gpu(name).name
    except InputError:
        plain = re.sub(r"[ _-]+[0-9]+ ?GB$|[ _-]one(?=[ _-]GCD)|(?<=[GBH]200) SXM$|(?<=6000)[ _-]Blackwell", "", name)
        return re.sub(r"^Tesla[ _-]", "", plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """One entry per (device, dtype, shape, whatever is grouped by) of one kind of table."""

    kind: TableKind
    coded: Mapping[str, Coded]
    numbers: JsonMap
    measured_s: Floats64
    rows: Index
    """Number of rows behind each median."""
    spread: Floats64
    """Mean over those rows of |row / median - 1|; NaN for a single row."""
    least_s: Floats64
    most_s: Floats64
    each_s: Floats64
    """The rows' own times, target after target, in each from the fastest to the slowest."""
    of_rows: Index
    """The target of every row of the tables."""

    def __len__(self) -> int:
        return int(self.measured_s.size)

    def words(self, i: int) -> JsonDict:
        return {name: column.values[column.codes[i]] for name, column in self.coded.items()}

    def without_faster(self, least_s: Floats64) -> Targets:
        """The same targets without rows faster than ``least_s`` of their target, which must leave each a row."""
        slow_enough = self.each_s >= np.repeat(least_s, self.rows)
        starts = np.cumsum(self.rows) - self.rows
        counts = np.add.reduceat(slow_enough.astype(np.int64), starts)
        return replace(self, **_statistics(self.each_s[slow_enough], np.cumsum(counts) - counts, counts))

    def sizes(self, i: int) -> JsonDict:
        return {name: values[i].item() for name, values in self.numbers.items()}


def targets_of(tables: Sequence[Table], group_by: Sequence[str] = ()) -> Targets:
    """Targets from tables of one kind. Columns in ``group_by`` split targets too."""
    kind = tables[0].kind
    coded = {name: _joined(tables, name) for name in dict.fromkeys([*tables[0].coded, *group_by])}
    numbers = {name: np.concatenate([table.numbers[name] for table in tables]) for name in tables[0].numbers}
    measured_s = _seconds(kind, np.concatenate([table.measured for table in tables]), numbers)
    if kind.name == "memory_bound":
        framework = coded["framework"]
        coded["kernels"] = _mapped(framework, lambda word: TORCH if word == "torch_graph" else str(word))
        _replace(coded, "framework", "eager", _mapped(framework, lambda word: word == "torch"), group_by)
    if kind.name == "moe":
        labels = coded["kernel"]
        _replace(coded, "kernel", "gated", _gated(coded["kernel"], coded["gpu"], numbers), group_by)
        families = _mapped(labels, kernel_family)
    # GEMMs not grouped by it are the middle's, whose network has seen each framework that timed a shape alone.
    by_framework = kind.name == "attention" or (kind.name == "gemm" and "framework" in group_by)
    if by_framework:
        families = coded["framework"]
        if "framework" not in group_by:
            del coded["framework"]
    keys = [*(column.codes for column in coded.values()), *(_codes(values) for values in numbers.values())]
    order, starts = _grouped(keys, measured_s)
    first, counts = order[starts], np.diff(np.append(starts, order.size))
    of_rows = np.empty(order.size, dtype=np.int64)
    of_rows[order] = np.repeat(np.arange(starts.size), counts)
    words = {name: column.take(first) for name, column in coded.items()}
    if kind.name == "moe" or by_framework:
        words["kernels"] = _together(families, order, starts)
    if by_framework:
        words["kernels"] = _mapped(words["kernels"], _only)
    return Targets(
        kind=kind,
        coded=words,
        numbers={name: values[first] for name, values in numbers.items()},
        of_rows=of_rows,
        **_statistics(measured_s[order], starts, counts),
    )


def _statistics(ascending: Floats64, starts: Index, counts: Index) -> JsonDict:
    """The fields of targets that come from their rows' times."""
    median = _middle(ascending, starts, counts)
    deviation = np.abs(ascending / np.repeat(median, counts) - 1)
    return {
        "measured_s": median,
        "rows": counts,
        "spread": np.where(counts > 1, np.add.reduceat(deviation, starts) / counts, np.nan),
        "least_s": ascending[starts],
        "most_s": ascending[starts + counts - 1],
        "each_s": ascending,
    }


def _only(frameworks: str) -> str:
    """The framework that ran a shape; empty if there were several, as the middle of all kernels predicts their median
    best (lab/notebook/attention.md)."""
    names = set(frameworks.split("+"))
    return names.pop() if len(names) == 1 else ""


def _together(column: Coded, order: Index, starts: Index) -> Coded:
    """For every run of rows, the values in it joined by ``+``, each repeated by its share of the rows: two rows of one
    value and one of another give ``a+a+b``."""
    names = sorted(dict.fromkeys(str(value) for value in column.values))
    places = np.asarray([names.index(str(value)) for value in column.values], dtype=np.int64)[column.codes[order]]
    counts = np.stack([np.add.reduceat((places == i).astype(np.int64), starts) for i in range(len(names))], axis=1)
    counts //= np.gcd.reduce(counts, axis=1)[:, None]
    sets, codes = np.unique(counts, axis=0, return_inverse=True)
    joined = ["+".join(name for name, often in zip(names, row, strict=True) for _ in range(often)) for row in sets]
    return Coded(codes=codes.reshape(-1).astype(np.int64), values=tuple(joined))


def _replace(coded: dict[str, Coded], label: str, name: str, column: Coded, group_by: Sequence[str]) -> None:
    """Replace a label (it names a framework, not a shape) by the column derived from it."""
    coded[name] = column
    if label not in group_by:
        del coded[label]


def _gated(kernel: Coded, gpu: Coded, numbers: JsonMap) -> Coded:
    """Whether experts have a gate. One kernel called nongated settles it for a shape on that device (a model's either
    do or don't); on another, older frameworks may have used a gate (A100 rows would beat its memory otherwise)."""
    shape = combine(
        [gpu.codes, *(_codes(numbers[name]) for name in ("hidden_size", "inter_size", "topk", "num_experts"))]
    )
    shapes, code = np.unique(shape, return_inverse=True)
    plain = np.asarray(["nongated" in str(value) for value in kernel.values])[kernel.codes]
    ungated = np.zeros(shapes.size, dtype=bool)
    ungated[code[plain]] = True
    return Coded(codes=ungated[code].astype(np.int64), values=(True, False))


def _seconds(kind: TableKind, measured: Floats64, numbers: JsonMap) -> Floats64:
    """Measured seconds; a rate is converted to the time of its GEMM."""
    if kind.measured.endswith("tflops"):
        return 2.0 * numbers["m"] * numbers["n"] * numbers["k"] / (measured * 1e12)  # type: ignore[no-any-return]
    return measured * kind.unit_s


def _joined(tables: Sequence[Table], name: str) -> Coded:
    """One column over several tables; empty words for tables without it."""
    values: dict[Any, int] = {}
    codes = []
    for table in tables:
        column = table.coded.get(name)
        if column is None:
            number = table.numbers.get(name)
            column = _column(number) if number is not None else _blank(table.measured.size)
        new_codes = np.asarray([values.setdefault(value, len(values)) for value in column.values], dtype=np.int64)
        codes.append(new_codes[column.codes])
    return Coded(codes=np.concatenate(codes), values=tuple(values))


def _blank(rows: int) -> Coded:
    return Coded(codes=np.zeros(rows, dtype=np.int64), values=("",))


def _column(numbers: Floats) -> Coded:
    values, codes = np.unique(numbers, return_inverse=True)
    return Coded(codes=codes.astype(np.int64), values=tuple(values.tolist()))


def _mapped(column: Coded, says: Callable[[Any], Any]) -> Coded:
    mapped = [says(value) for value in column.values]
    values = tuple(dict.fromkeys(mapped))
    return Coded(codes=np.asarray([values.index(word) for word in mapped])[column.codes], values=values)


def _codes(numbers: Floats) -> Index:
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64)


def combine(keys: Sequence[Index]) -> Index:
    """One code per distinct combination of codes."""
    joint = np.zeros(keys[0].size, dtype=np.int64)
    span = 1
    for key in keys:
        width = int(key.max(initial=0)) + 1
        if span * width >= 2**62:
            joint = np.unique(joint, return_inverse=True)[1].astype(np.int64)
            span = int(joint.max(initial=0)) + 1
        joint, span = joint * width + key, span * width
    return joint


def _grouped(keys: Sequence[Index], values: Floats64) -> tuple[Index, Index]:
    """Rows sorted by key and then value, and where each key starts."""
    joint = combine(keys)
    order = np.lexsort((values, joint))
    changes = np.flatnonzero(np.diff(joint[order])) + 1
    return order, np.concatenate([[0], changes]).astype(np.int64)


def _middle(ascending: Floats64, starts: Index, counts: Index) -> Floats64:
    """Median of every run of sorted values."""
    low, high = starts + (counts - 1) // 2, starts + counts // 2
    return (ascending[low] + ascending[high]) / 2  # type: ignore[no-any-return]


MOST_APART, LEAST_REPEATED = 1.5, 5
"""Median ratio of a shape's slowest row to its fastest above which repeats contradict each other, and the least number
of repeated shapes. In the published bf16 tables of a GPU it is at most 1.25 (all frameworks and versions together) and
1.37 on Arc B60; in fp8_block 3 to 23, as frameworks run it on other kernels (lab/notebook/validation.md)."""


def contradictions(targets: Targets) -> tuple[FloatArray, tuple[str, ...]]:
    """The largest |ln(row / median)| of every shape where repeats contradict each other, else 0, and what is said."""
    several = targets.rows > 1
    ratio = targets.most_s / targets.least_s
    if several.sum() < LEAST_REPEATED or (middle := float(np.median(ratio[several]))) <= MOST_APART:
        return np.zeros(len(targets)), ()
    apart = np.log(np.maximum(targets.most_s / targets.measured_s, targets.measured_s / targets.least_s))
    return apart, (
        f"latency_us: {several.sum()} shapes have several rows, at the median the slowest takes {middle:.1f} times as "
        "long as the fastest; fitted to their medians, with an interval that holds both (what else differs?)",
    )


MODELS = {
    "bert_large": "bert-large",
    "gpt2_large": "gpt2-large",
    "gpt3_xl": "gpt3-xl",
    "gpt3_27": "gpt3-2.7b",
    "opt_13": "opt-1.3b",
}
"""Names in the tables -> names in the zoo."""

WIDTHS: Mapping[str, Mapping[str, int]] = {"gpt3_xl": {"hidden_size": 3072, "ffn_hidden_size": 12288}}
"""Sizes that differ from the paper's: width for 24 heads of 128 (data/end_to_end gives every size of the same
models)."""


def named_model(name: str) -> TransformerShape:
    """A model by its name in the tables or in the zoo. Raises ``InputError``."""
    shape = load_model(MODELS.get(name, name))
    return edit(shape, **WIDTHS[name]) if name in WIDTHS else shape


_PHASES = {"forward": Phase.PREFILL, "train_step": Phase.TRAIN, "prefill": Phase.PREFILL, "train": Phase.TRAIN}


def model_work(words: JsonMap, sizes: JsonMap) -> RowWork:
    """Every operator of one row's model on one device. Raises ``Unexpressed``.

    The rows ran eager PyTorch, with a kernel per elementwise step unless ``part`` is ``total_fusion``, and with
    attention as GEMMs and a softmax; training steps exclude the optimizer.
    """
    part = str(words["part"])
    if part not in ("total", "total_fusion"):
        raise Unexpressed(f"part {part[:30]}: pipelined or split runs are not one device's graph")
    phase = _PHASES.get(str(words["phase"]))
    if phase is None:
        raise Unexpressed(f"phase {str(words['phase'])[:30]}: must be forward or train_step")
    name = str(words["model"])
    try:
        shape = named_model(name)
        workload = Workload(
            shape=shape,
            phase=phase,
            microbatch_size=_one(sizes["batch"]),
            seq_len=_one(sizes["seq"]),
            dtype=dtype_of(words["dtype"]),
            attention_kernel=AttentionKernel.UNFUSED,
        )
        graph = lower(workload, ParallelDims(tp=_one(sizes.get("tp", 1))), Kernels(fused=part == "total_fusion"))
    except InputError as error:
        raise Unexpressed(f"model {name[:40]}: {error.must}") from None
    return RowWork(operators=graph.operators, eager=True, tokens=int(graph.tokens))


def _one(size: Ints) -> int:
    """The only entry of an array, or the number."""
    return int(size) if not hasattr(size, "item") else int(size.item())
