"""How well predictions rank shapes of equal work, beside NVIDIA's matmul heuristics.

Whether predictions order shapes of near-equal work as they were measured: what a choice between shapes needs.

nvidia-matmul-heuristics as a second prediction of GEMMs, if it is installed (extra ``heuristics``).

It takes 0.1 to 0.7 ms per GEMM, so only a sample of each group is used. Proprietary licence: optional, never shipped.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

from sartor.json_types import JsonDict
from sartor.records.tables import Floats64, Index
from sartor.validate.predictions import Predicted

NEAR_WORK = 1.1
"""For rank agreement, shapes are compared if their work is in the same step of this factor."""

EQUAL_WORK = 1.02
"""For the share of pairs in order, shapes are compared if their work differs by at most this factor."""

FAR_TIME = 1.05
"""Such pairs count if their measured times differ by more than this factor: less is the noise of measurements."""

PAIRS = 64
"""Most other shapes that each shape is compared with."""


def near_tau(predicted: Predicted, group: Index, groups: int) -> Floats64:
    """Kendall's tau among shapes of near-equal work, pooled per group.

    Work (FLOPs; bytes if there are none) is cut into steps of a factor ``NEAR_WORK``. Within a step, pairs with
    different measured times are concordant if the predictions order them the same way, discordant otherwise: tau = (C -
    D) / (C + D). In a step of more than ``PAIRS`` + 1 shapes each is paired with ``PAIRS`` others, drawn by a fixed
    shuffle.
    """
    step = np.floor(_log_work(predicted) / np.log(NEAR_WORK)).astype(np.int64)
    order = np.lexsort((_shuffle(step.size), step, _groups(predicted, group)))
    agree, pairs = np.zeros(groups), np.zeros(groups)
    for pair_group, apart, measured, guessed in _pairs(predicted, group, step, order):
        alike = np.sign(measured) * np.sign(guessed) * (apart == 0)
        agree += np.bincount(pair_group, weights=alike, minlength=groups)
        pairs += np.bincount(pair_group, weights=np.abs(alike), minlength=groups)
    return _ratio(agree, pairs)


def faster_picked(predicted: Predicted, group: Index, groups: int) -> Floats64:
    """Share of the pairs of shapes within ``EQUAL_WORK`` of each other and more than ``FAR_TIME`` apart in measured
    time whose faster one is predicted to be faster, pooled per group. Each shape is paired with at most ``PAIRS``
    others, the nearest in work above its own (of equal ones, those of a fixed shuffle)."""
    work = _log_work(predicted)
    order = np.lexsort((_shuffle(work.size), work, _groups(predicted, group)))
    right, pairs = np.zeros(groups), np.zeros(groups)
    for pair_group, apart, measured, guessed in _pairs(predicted, group, work, order):
        counted = (apart <= np.log(EQUAL_WORK)) & (np.abs(measured) > np.log(FAR_TIME))
        right += np.bincount(pair_group, weights=counted & (np.sign(measured) == np.sign(guessed)), minlength=groups)
        pairs += np.bincount(pair_group, weights=counted, minlength=groups)
    return _ratio(right, pairs)


def _pairs(predicted: Predicted, group: Index, place: Any, order: Index) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Every shape with the next, the one after that and so on in ``order``: their group, how far apart their ``place``
    is, and the logarithms of one's measured and predicted time over the other's. Pairs across groups are left out."""
    expressed = np.flatnonzero(predicted.expressed)[order]
    g, place = group[expressed], place[order]
    measured, guessed = np.log(predicted.targets.measured_s[expressed]), np.log(predicted.time_s[expressed])
    for shift in range(1, min(PAIRS, expressed.size - 1) + 1):
        same = g[shift:] == g[:-shift]
        far, longer, thought = ((column[shift:] - column[:-shift])[same] for column in (place, measured, guessed))
        yield g[shift:][same], far, longer, thought


def _groups(predicted: Predicted, group: Index) -> Index:
    return group[np.flatnonzero(predicted.expressed)]


def _log_work(predicted: Predicted) -> Floats64:
    log_work: Floats64 = np.log(np.maximum(predicted.work[np.flatnonzero(predicted.expressed)], 1.0))
    return log_work


def _shuffle(size: int) -> Any:
    return (np.arange(size, dtype=np.uint64) * np.uint64(11400714819323198485)) >> np.uint64(20)


def _ratio(part: Floats64, whole: Floats64) -> Floats64:
    ratio: Floats64 = np.divide(part, whole, where=whole > 0, out=np.full(whole.size, np.nan))
    return ratio


SAMPLE = 300
"""GEMMs sampled in each group, evenly spaced, so that the same ones are used each time."""

_GPUS = {
    "a100_sxm": "A100_SXM_80GB",
    "a100_pcie_80gb": "A100_PCIE_80GB",
    "a30": "A30_PCIE",
    "a10": "A10_PCIE",
    "a40": "A40_PCIE",
    "rtx_3090": "RTX_3090",
    "l40s": "L40S",
    "l4": "L4",
    "rtx_4090": "RTX_4090",
    "rtx_6000_ada": "RTX_6000_ADA",
    "h100_sxm": "H100_SXM",
    "h100_pcie": "H100_PCIE",
    "h100_nvl": "H100_NVL",
    "h200_sxm": "H200_SXM",
    "h20": "H20_SXM",
    "b200_sxm": "B200",
    "gb200": "GB200_NVL",
    "gb300": "GB300_NVL",
    "rtx_5090": "RTX_5090",
    "rtx_pro_6000_server": "RTX_PRO_6000",
}
"""Catalogue name -> the package's predefined device, version 0.1.0.27."""

_PRECISIONS = {"bfloat16": "TST", "bf16": "TST", "float16": "HSH", "fp16": "HSH", "half": "HSH"}
"""The package's letters for 16-bit operands, fp32 sums and a 16-bit result."""


def heuristics_s(predicted: Predicted, group: Index, groups: int) -> Floats64:
    """The package's time [s] for a sample of every group's GEMMs; NaN elsewhere, and everywhere if not installed."""
    targets = predicted.targets
    out = np.full(len(targets), np.nan)
    if targets.kind.name != "gemm":
        return out
    try:
        package: Any = import_module("nvMatmulHeuristics")
    except ImportError:
        return out
    handles: dict[tuple[str, str], Any] = {}  # opening one takes longer than a thousand predictions
    with contextlib.redirect_stdout(io.StringIO()):  # it prints warnings
        for members in _sample(predicted, group, groups):
            words, sizes = targets.words(int(members)), targets.sizes(int(members))
            key = _GPUS.get(str(words["gpu"]), ""), _PRECISIONS.get(str(words["dtype"]), "")
            if not all(key) or sizes["batch"] != 1 or words.get("op") == "bmm":
                continue
            if key not in handles:
                handles[key] = _interface(package, *key)
            out[members] = _one(package, handles[key], sizes)
    for interface, _ in handles.values():
        interface.handle = None  # freeing it crashes the process (0.1.0.27), so it is never freed
    return out


def _sample(predicted: Predicted, group: Index, groups: int) -> Index:
    chosen = []
    order = np.argsort(group, kind="stable")
    order = order[predicted.expressed[order]]
    ends = np.cumsum(np.bincount(group[order], minlength=groups))
    for start, stop in zip(np.append(0, ends[:-1]), ends, strict=True):
        count = min(SAMPLE, int(stop - start))
        chosen.append(order[start:stop][np.linspace(0, stop - start - 1, count).astype(np.int64)])
    return np.concatenate(chosen) if chosen else np.empty(0, dtype=np.int64)


def _one(package: Any, handle: Any, sizes: JsonDict) -> float:
    interface, descriptor = handle
    layout = package.NvMatmulHeuristicsMatmulLayout.NT_ROW_MAJOR  # x[m,k] times w[n,k] transposed, rows contiguous
    choices = interface.get_with_mnk(sizes["m"], sizes["n"], sizes["k"], layout, 1, descriptor)
    return float(choices[0]["runtime"]) if choices else float("nan")


def _interface(package: Any, gpu: str, precision: str) -> Any:
    interface = package.NvMatmulHeuristicsInterface(
        package.NvMatmulHeuristicsTarget.GENERIC,
        precision=precision,
        flags=package.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
    )
    descriptor = interface.createHardwareDescriptor()
    interface.setHardwarePredefinedGpu(descriptor, package.NvMatmulHeuristicsNvidiaGpu[gpu])
    interface.loadInternalDiscoverySet(package.NvMatmulHeuristicsMatmulLayout.NT_ROW_MAJOR, descriptor)
    return interface, descriptor
