"""nvidia-matmul-heuristics as a second prediction of GEMMs, if it is installed (extra ``heuristics``).

It takes 0.1 to 0.7 ms per GEMM, so only a sample of each group is used. Proprietary licence: optional, never shipped.
"""

from __future__ import annotations

import contextlib
import io
from importlib import import_module
from typing import Any

import numpy as np

from sartor.json_types import JsonDict
from sartor.records.tables import Floats64, Index
from sartor.validate.predictions import Predicted

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
