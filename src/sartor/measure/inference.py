"""Inference end to end against published figures: prefill passes, decoding steps and throughput at full load.

A row is a model, a plan and one measured time or rate. Its shape is built from the row's own columns, or taken from the
zoo where the row gives only a name; what cannot be built is counted with its reason. Modes and columns:
data/end_to_end/README.md. What a mode is taken to mean is in ``ASSUMED``.
"""

from __future__ import annotations

import csv
import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sartor.cost.cost import Z80
from sartor.cost.estimate import Estimate, estimate
from sartor.cost.gemm import peak_flops_per_s
from sartor.errors import InputError
from sartor.hardware.calibration import Clock, load_calibration
from sartor.hardware.gpu import Gpu
from sartor.measure.inference_shapes import shape_of
from sartor.measure.predictions import known
from sartor.measure.rows import Unexpressed
from sartor.model.counts import count_params
from sartor.model.lower import lower
from sartor.model.parallel import ParallelDims
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, Phase, Workload
from sartor.operators import DType, Gemm, GroupedGemm, OperatorGraph

REQUIRED = ("mode", "model", "gpu", "weight_dtype")
GROUPS = ("mode", "gpu", "weight_dtype")

ASSUMED = {
    "prefill_forward": "one pass over batch x isl tokens; fp32 rows ran eager PyTorch with unfused attention",
    "decode_batch1": "one step in the middle of the generation: context isl + osl / 2",
    "layer_prefill": "one layer, no embedding or head; attention as products and a softmax",
    "layer_decode": "as layer_prefill, at the end of the generation: context isl + osl",
    "offline_max_throughput": "batch as large as memory allows (0.9 of it, less weights; keys and values of isl + osl "
    "tokens in 8 bits where weights are narrower than 16), at most 2048; every sequence is prefilled once and then "
    "decodes osl steps at context isl + osl / 2; tensor parallel over tp devices, no time between steps",
}
"""What the words of a mode are taken to mean."""

MEMORY_SHARE = 0.9
"""Share of a device's memory that a server fills (TensorRT-LLM's and vLLM's default)."""

MAX_BATCH = 2048
"""TensorRT-LLM's default for the most sequences at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRow:
    """One row's outcome; ``reason`` says why there is no prediction."""

    words: Mapping[str, str]
    measured_s: float = float("nan")
    """Seconds of a pass or step; for throughput, seconds per output token of all devices together."""
    predicted_s: float = float("nan")
    log_sigma: float = float("nan")
    roofline_s: float = float("nan")
    source: str = ""
    batch: int = 0
    reason: str = ""

    @property
    def ratio(self) -> float:
        return self.predicted_s / self.measured_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """The answer of ``sartor validate inference``."""

    data: str
    rows: tuple[InferenceRow, ...]
    group_by: tuple[str, ...]
    worst: int = 5


def validate_inference(data: str | Path, *, group_by: Sequence[str] = (), worst: int = 5) -> Inference:
    """One prediction per row it can express. ``data`` is a CSV file or the folder that holds ``inference.csv``.

    Raises ``InputError`` when the file or its columns cannot be used, or none of its rows.
    """
    path, rows = _read(Path(data))
    known_columns = list(rows[0])
    for name in group_by:
        if name not in known_columns:
            near = ", ".join(difflib.get_close_matches(name, known_columns, n=3) or known_columns[:5])
            raise InputError("--group-by", name, "must be a column of the file", near)
    found = tuple(_outcome(row) for row in rows)
    if all(row.reason for row in found):
        reasons = "; ".join(sorted({row.reason for row in found})[:3])
        raise InputError("data", path.name, f"none of its {len(found)} rows can be predicted ({reasons})")
    return Inference(data=str(data), rows=found, group_by=tuple(group_by) or GROUPS, worst=worst)


# ------------------------------------------------------------------------------------------- reading


def _read(path: Path) -> tuple[Path, list[dict[str, str]]]:
    try:
        path = path / "inference.csv" if path.is_dir() else path
        if not path.is_file():
            raise InputError("data", str(path), "must be a .csv file that exists, or a folder with inference.csv")
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [{str(k): (v or "").strip() for k, v in row.items() if k} for row in csv.DictReader(file)]
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("data", path.name, f"must be readable as csv ({' '.join(str(error).split())[:120]})") from None
    if not rows:
        raise InputError("data", path.name, "must have a row of measurements")
    missing = [name for name in REQUIRED if name not in rows[0]]
    if missing:
        raise InputError("data", path.name, f"inference rows must have {', '.join(missing)}")
    return path, rows


def _number(row: Mapping[str, str], name: str, default: float | None = None) -> float:
    text = row.get(name, "")
    if text == "" and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        raise Unexpressed(f"{name} is not a number") from None
    if not math.isfinite(value) or value < 0:
        raise Unexpressed(f"{name} is not a number of at least 0")
    return value


def _whole(row: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = _number(row, name, default)
    if value != int(value) or value > 2**40:
        raise Unexpressed(f"{name} is not a whole number")
    return int(value)


# ------------------------------------------------------------------------------------------- one row


def _outcome(row: Mapping[str, str]) -> InferenceRow:
    try:
        return _predict(row)
    except Unexpressed as why:
        return InferenceRow(words=row, reason=str(why))
    except InputError as why:
        return InferenceRow(words=row, reason=f"{why.field}: {why.must}")


_DTYPES = {
    "bf16": DType.BF16,
    "fp16": DType.FP16,
    "fp32": DType.FP32,
    "fp8": DType.FP8,
    "fp4": DType.NVFP4,
    "nvfp4": DType.NVFP4,
    "int8": DType.INT8_WO,
    "int4": DType.INT4_WO,
}
"""``int8`` and ``int4`` of the collection are weight-only (gpt-fast); int8 products are called otherwise."""


def _predict(row: Mapping[str, str]) -> InferenceRow:
    mode = row["mode"]
    if mode not in _MODES:
        raise Unexpressed(f"mode {mode[:30]}: must be one of {', '.join(_MODES)}")
    dtype = _DTYPES.get(row["weight_dtype"].lower())
    if dtype is None:
        raise Unexpressed(f"weight_dtype {row['weight_dtype'][:20]}: not one of {', '.join(_DTYPES)}")
    gpu = known(row["gpu"])
    if int(_number(row, "pp", 1)) > 1:
        raise Unexpressed("pp above 1: a pipeline is not one device's graph")
    found: InferenceRow = _MODES[mode](row, gpu, dtype, shape_of(row))
    return found


def _workload(row: Mapping[str, str], shape: TransformerShape, phase: Phase, dtype: DType, **sizes: Any) -> Workload:
    eager = dtype is DType.FP32 or row["mode"].startswith("layer")
    kernel = AttentionKernel.UNFUSED if eager else AttentionKernel.FLASH
    return Workload(shape=shape, phase=phase, dtype=dtype, attention_kernel=kernel, **sizes)


def _estimate(workload: Workload, row: Mapping[str, str], gpu: Gpu, *, whole: bool = True) -> Estimate:
    """One pass on one device of the tensor-parallel group; short runs at the boost clock."""
    graph = lower(workload, ParallelDims(tp=_whole(row, "tp", 1)))
    if not whole:
        layers = tuple(op for op in graph.operators if op.part.value == "layer")
        graph = OperatorGraph(operators=layers, tokens=graph.tokens)
    return estimate(graph, gpu, load_calibration(gpu, workload.dtype), clock=Clock.BOOST, details=False)


def _done(
    row: Mapping[str, str], measured_s: float, found: Sequence[tuple[Estimate, float]], batch: int, per: float = 1.0
) -> InferenceRow:
    """A row whose time is a weighted sum of passes, over ``per``."""
    time_s = sum(float(each.time_s) * weight for each, weight in found) / per
    spread = sum(float(each.time_s * each.log_sigma) * weight for each, weight in found) / per
    return InferenceRow(
        words=row,
        measured_s=measured_s,
        predicted_s=time_s,
        log_sigma=spread / time_s,
        roofline_s=sum(_roofline_s(each) * weight for each, weight in found) / per,
        source=found[0][0].source.value,
        batch=batch,
    )


def _roofline_s(found: Estimate) -> float:
    total = 0.0
    for op in found.graph.operators:
        compute = op.flops / peak_flops_per_s(found.gpu, op.dtype) if isinstance(op, (Gemm, GroupedGemm)) else 0.0
        total += float(max(compute, op.bytes_moved / found.gpu.hbm_bytes_per_s) * op.count)
    return total


def _prefill(row: Mapping[str, str], gpu: Gpu, dtype: DType, shape: TransformerShape) -> InferenceRow:
    batch = _whole(row, "batch", 1)
    workload = _workload(row, shape, Phase.PREFILL, dtype, microbatch_size=batch, seq_len=_whole(row, "isl"))
    found = _estimate(workload, row, gpu, whole=not row["mode"].startswith("layer"))
    return _done(row, _measured_ms(row, "latency_ms", "ttft_ms"), [(found, 1.0)], batch)


def _decode(row: Mapping[str, str], gpu: Gpu, dtype: DType, shape: TransformerShape) -> InferenceRow:
    batch, layer = _whole(row, "batch", 1), row["mode"].startswith("layer")
    out = _whole(row, "osl", 0)
    context = _whole(row, "isl", 0) + (out if layer else out // 2)
    workload = _workload(row, shape, Phase.DECODE, dtype, microbatch_size=batch, context_len=context)
    found = _estimate(workload, row, gpu, whole=not layer)
    return _done(row, _measured_ms(row, "tpot_ms", "latency_ms"), [(found, 1.0)], batch)


def _measured_ms(row: Mapping[str, str], *names: str) -> float:
    for name in names:
        if row.get(name, "") != "" and _number(row, name) > 0:
            return _number(row, name) / 1e3
    raise Unexpressed(f"none of {', '.join(names)} is given")


def _throughput(row: Mapping[str, str], gpu: Gpu, dtype: DType, shape: TransformerShape) -> InferenceRow:
    """Seconds per output token of the whole group: a sequence costs one prefill and ``osl`` shares of a step."""
    isl, osl = _whole(row, "isl"), _whole(row, "osl")
    rate = _number(row, "output_tokens_per_s")
    if osl < 1 or rate <= 0:
        raise Unexpressed("osl or output_tokens_per_s is not above 0")
    batch = _largest_batch(row, gpu, dtype, shape, isl + osl)
    step = _workload(row, shape, Phase.DECODE, dtype, microbatch_size=batch, context_len=isl + osl // 2)
    together = max(1, min(batch, 8192 // max(isl, 1)))  # prefills run in chunks of about 8192 tokens (engine default)
    fill = _workload(row, shape, Phase.PREFILL, dtype, microbatch_size=together, seq_len=max(isl, 1))
    found = [(_estimate(step, row, gpu), osl / batch), (_estimate(fill, row, gpu), 1 / together)]
    return _done(row, 1 / rate, found, batch, per=osl)


def _largest_batch(row: Mapping[str, str], gpu: Gpu, dtype: DType, shape: TransformerShape, length: int) -> int:
    """Sequences whose keys and values fit beside the weights."""
    tp = _whole(row, "tp", 1)
    weights = float(count_params(shape).total) * dtype.bytes / tp
    element = 1.0 if dtype.bytes < 2 else 2.0
    attention = shape.attention
    if attention is None or not hasattr(attention, "num_kv_heads"):
        raise Unexpressed("attention whose cache size is not heads x head_dim")
    heads = max(1, math.ceil(int(attention.num_kv_heads) / tp))
    per_token = 2 * int(shape.num_layers) * heads * int(attention.head_dim) * element
    free = MEMORY_SHARE * gpu.hbm_bytes - weights
    batch = int(free // (per_token * length))
    if batch < 1:
        raise Unexpressed("weights and one sequence do not fit in memory")
    return min(batch, MAX_BATCH)


_MODES: Mapping[str, Any] = {
    "prefill_forward": _prefill,
    "layer_prefill": _prefill,
    "decode_batch1": _decode,
    "layer_decode": _decode,
    "offline_max_throughput": _throughput,
}


# ------------------------------------------------------------------------------------------- the answer


def inference_body(found: Inference) -> dict[str, Any]:
    """The JSON of the contract: groups, not_expressed, and what each mode was taken to mean."""
    groups: dict[tuple[str, ...], list[InferenceRow]] = {}
    for row in found.rows:
        groups.setdefault(tuple(row.words[name] for name in found.group_by), []).append(row)
    reasons: dict[str, int] = {}
    for row in found.rows:
        if row.reason:
            reasons[row.reason] = reasons.get(row.reason, 0) + 1
    modes = dict.fromkeys(row.words["mode"] for row in found.rows)
    return {
        "data": found.data,
        "num_rows": len(found.rows),
        "expressed": sum(not row.reason for row in found.rows),
        "groups": [_group(found, key, rows) for key, rows in sorted(groups.items())],
        "not_expressed": dict(sorted(reasons.items())),
        "left_out": {},
        "remarks": [],
        "assumptions": {mode: ASSUMED[mode] for mode in modes if mode in ASSUMED},
    }


def _group(found: Inference, key: tuple[str, ...], rows: Sequence[InferenceRow]) -> dict[str, Any]:
    good = [row for row in rows if not row.reason]
    ratio = np.asarray([row.ratio for row in good])
    error = np.abs(ratio - 1)
    inside = [abs(math.log(row.ratio)) <= Z80 * row.log_sigma for row in good]
    roofline = [abs(row.roofline_s / row.measured_s - 1) for row in good]
    worst = sorted(good, key=lambda row: -abs(math.log(row.ratio)))[: found.worst]
    return {
        "table": "inference",
        **dict(zip(found.group_by, key, strict=True)),
        "rows": len(rows),
        "targets": len(rows),
        "expressed": len(good),
        "mape": float(error.mean()) if good else None,
        "median_error": float(np.median(error)) if good else None,
        "p90_error": float(np.quantile(error, 0.9)) if good else None,
        "bias": float(np.median(ratio) - 1) if good else None,
        "coverage_80": float(np.mean(inside)) if good else None,
        "kendall_tau": _tau(good),
        "roofline_mape": float(np.mean(roofline)) if good else None,
        "worst": [_case(row) for row in worst],
    }


def _tau(rows: Sequence[InferenceRow]) -> float | None:
    """Rank agreement over all pairs of the group whose measured times differ."""
    measured = np.asarray([row.measured_s for row in rows])
    predicted = np.asarray([row.predicted_s for row in rows])
    signs = np.sign(measured[:, None] - measured) * np.sign(predicted[:, None] - predicted)
    pairs = np.count_nonzero(signs)
    return float(signs.sum() / pairs) if pairs else None


def _case(row: InferenceRow) -> dict[str, Any]:
    spread = math.exp(Z80 * row.log_sigma)
    names = ("mode", "model", "gpu", "weight_dtype", "batch", "isl", "osl", "tp")
    return {
        **{name: row.words[name] for name in names if row.words.get(name)},
        "batch": row.batch,
        "measured_s": row.measured_s,
        "predicted_s": row.predicted_s,
        "low_s": row.predicted_s / spread,
        "high_s": row.predicted_s * spread,
        "ratio": row.ratio,
        "source": row.source,
    }


def inference_charts(found: Inference) -> list[dict[str, Any]]:
    """Rows for the scatter; there is no axis of sizes that all modes share."""
    rows = [
        {"gpu": row.words["gpu"], "measured_s": row.measured_s, "predicted_s": row.predicted_s}
        for row in found.rows
        if not row.reason
    ]
    return [{"table": "inference", "scatter": rows, "errors": []}]
