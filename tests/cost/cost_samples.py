"""Operators and devices the laws of the cost model are checked on."""

from __future__ import annotations

import importlib
import sys
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from hypothesis import strategies as st

from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.correction.network import without_residuals
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.operators import (
    Attention,
    Collective,
    CollectiveKind,
    DType,
    Gemm,
    GroupedGemm,
    Layout,
    MemoryBound,
    MemoryBoundKind,
    Operator,
)

LAB = Path(__file__).resolve().parents[2] / "lab"

GPUS = ("a100_sxm", "v100_sxm", "mi250x", "h200_sxm", "h100_sxm", "b200_sxm", "rtx_pro_6000_server", "mi300x", "l4")


def lab_module(name: str) -> ModuleType:
    """A module of the lab, which is not in the package."""
    sys.path.insert(0, str(LAB))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(LAB))


def dtype_of(gpu: Gpu) -> DType:
    return DType.BF16 if DType.BF16 in gpu.peak_flops_per_s else DType.FP16


sizes = st.integers(1, 20000)
gpus = st.sampled_from(GPUS).map(load_gpu)
layouts = st.sampled_from(Layout)


@st.composite
def gemms(draw: Any, gpu: Gpu) -> Gemm:
    return Gemm(
        name="gemm",
        m=draw(sizes),
        n=draw(sizes),
        k=draw(sizes),
        batch=draw(st.sampled_from([1, 1, 2, 8, 64])),
        layout=draw(layouts),
        dtype=dtype_of(gpu),
        accumulates=draw(st.booleans()),
    )


@st.composite
def operators(draw: Any, gpu: Gpu) -> Operator:
    """Any operator at all."""
    dtype = dtype_of(gpu)
    seq = draw(st.integers(1, 8192))
    kv_heads = draw(st.integers(1, 16))
    dim = draw(st.sampled_from([32, 64, 80, 128, 192, 256]))
    return draw(
        st.sampled_from(
            [
                draw(gemms(gpu)),
                GroupedGemm(
                    name="experts", groups=draw(st.integers(1, 256)), rows=seq * 4, n=2048, k=1024, dtype=dtype
                ),
                Attention(
                    name="attention",
                    batch=draw(st.integers(1, 64)),
                    num_heads=kv_heads * draw(st.integers(1, 8)),
                    num_kv_heads=kv_heads,
                    seq_q=draw(st.sampled_from([1, seq])),
                    seq_kv=seq,
                    head_dim=dim,
                    v_head_dim=dim,
                    window=draw(st.sampled_from([0, 128, 4096])),
                    dtype=dtype,
                ),
                MemoryBound(
                    name="norm",
                    kind=draw(st.sampled_from(MemoryBoundKind)),
                    rows=seq,
                    cols=4096,
                    bytes_moved=seq * 16384.0,
                ),
                Collective(
                    name="collective",
                    kind=draw(st.sampled_from(CollectiveKind)),
                    group_size=draw(st.integers(1, 8)),
                    message_bytes=seq * 8192.0,
                ),
            ]
        )
    )


def faster_gpu(gpu: Gpu, factor: float) -> Gpu:
    """Every rate of the device times ``factor``."""
    rates = {
        name: getattr(gpu, name) * factor
        for name in (f.name for f in fields(gpu))
        if name.endswith("_per_s") and name != "peak_flops_per_s"
    }
    return replace(
        gpu,
        **rates,
        boost_clock_hz=gpu.boost_clock_hz * factor,
        max_clock_hz=gpu.max_clock_hz * factor,
        tdp_w=gpu.tdp_w * factor,
        peak_flops_per_s={dtype: peak * factor for dtype, peak in gpu.peak_flops_per_s.items()},
    )


def quicker(calibration: Calibration, factor: float) -> Calibration:
    """Every fixed delay of the calibration divided by ``factor``."""

    def part(coefficients: Any) -> Any:
        delays = {f.name: getattr(coefficients, f.name) / factor for f in fields(coefficients) if f.name.endswith("_s")}
        if hasattr(coefficients, "kinds"):
            delays["kinds"] = tuple((*row[:2], *(s / factor for s in row[2:-1]), row[-1]) for row in coefficients.kinds)
        if hasattr(coefficients, "direct"):
            delays["direct"] = tuple(
                (name, launch / factor, peer / factor, one, second / factor, two, sigma)
                for name, launch, peer, one, second, two, sigma in coefficients.direct
            )
        return replace(coefficients, **delays)

    law = calibration.torch_streams
    if law:
        starts = tuple((*row[:3], row[3] / factor, row[4]) for row in law.kinds)
        law = replace(law, launch_s=law.launch_s / factor, kinds=starts)
    return replace(
        calibration,
        torch_streams=law,
        gemm={dtype: part(c) for dtype, c in calibration.gemm.items()},
        few_rows={dtype: part(c) for dtype, c in calibration.few_rows.items()},
        misaligned=tuple(part(c) for c in calibration.misaligned),
        grouped=part(calibration.grouped),
        attention=part(calibration.attention),
        memory_bound=part(calibration.memory_bound),
        collective=part(calibration.collective),
    )


def calibration_of(gpu: Gpu) -> Calibration:
    """The formula alone: laws are stated for it, measurements need not obey them."""
    return without_residuals(load_calibration(gpu))
