"""Whose grouped kernels run an expert layer where a row does not say: the frameworks', as each of them chooses.

A target is a median over frameworks, so the best guess of it is the median over what they would run. What is said of
their choices was seen in moe_bf16.parquet (TensorRT-LLM 1.3, SGLang 0.5.14, vLLM 0.24 of 2026) and is no rule of
theirs; what it costs not to be told: docs/concepts/moe.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sartor.hardware.calibration import load_calibration
from sartor.measure.devices import known
from sartor.measure.rows import Unexpressed
from sartor.measure.tables import Column

FEW = 6
"""Experts a token visits, below which SGLang leaves TensorRT-LLM's grouped kernels for Triton's (on Blackwell)."""

GRAIN = 128
"""What the width of a gated expert must divide by for TensorRT-LLM's grouped kernels of SGLang and vLLM."""


USUAL = "usual: "
"""Begins the kernels of a target that are a guess."""


def usual_where_not_told(kernels: Column, gpu: Column, gated: Column, sizes: Mapping[str, Any]) -> Column:
    """``kernels`` with the usual ones, joined by ``+``, where it is empty; one entry per target."""
    blank = [i for i, value in enumerate(kernels.values) if value == ""]
    where = np.flatnonzero(np.isin(kernels.codes, blank))
    if not where.size:
        return kernels
    told = np.asarray(kernels.values, dtype=object)[kernels.codes]
    has_gate = np.asarray(gated.values, dtype=bool)[gated.codes]
    for code in np.unique(gpu.codes[where]):
        rows = where[gpu.codes[where] == code]
        told[rows] = usual_kernels(
            _families(str(gpu.values[code])), has_gate[rows], {k: v[rows] for k, v in sizes.items()}
        )
    values, codes = np.unique(told.astype(str), return_inverse=True)
    return Column(codes=codes.astype(np.int64), values=tuple(str(value) for value in values))


def usual_kernels(families: frozenset[str], gated: Any, sizes: Mapping[str, Any]) -> Any:
    """``USUAL`` and names of families joined by ``+``, one per layer; empty where fewer than two frameworks are
    known."""
    topk, width = np.asarray(sizes["topk"]), np.asarray(sizes["inter_size"])
    one_way = np.minimum(sizes["moe_tp_size"], sizes["moe_ep_size"]) <= 1  # vLLM splits experts one way only
    whole = ~gated | (width % GRAIN == 0)
    sglang = _choice(families, "sglang", np.where(whole & (topk >= FEW), "trtllm", "triton"), gated)
    vllm = np.where(one_way, _choice(families, "vllm", np.where(whole, "trtllm", "cutlass"), gated), "")
    first = np.full(topk.shape, "trtllm" if "trtllm" in families else "", dtype=object)
    return _joined(first, sglang, vllm)


def _joined(*columns: Any) -> Any:
    """``USUAL`` and names joined by ``+`` row by row; empty where fewer than two are given."""
    options = [np.unique(column.astype(str), return_inverse=True) for column in columns]
    sets, codes = np.unique(np.stack([codes for _, codes in options]), axis=1, return_inverse=True)
    names = [sorted(str(names[i]) for (names, _), i in zip(options, each, strict=True) if names[i]) for each in sets.T]
    return np.asarray([USUAL + "+".join(each) if len(each) > 1 else "" for each in names], dtype=object)[
        codes.reshape(-1)
    ]


def _choice(families: frozenset[str], framework: str, blackwell: Any, gated: Any) -> Any:
    """The framework's kernels: on devices with TensorRT-LLM's the choice given, elsewhere Triton (CUTLASS without a
    gate, or where it is all there is)."""
    if f"{framework}_trtllm" in families:
        wanted = blackwell
    else:
        wanted = np.where(gated, "triton", "cutlass")
    only = [name.removeprefix(f"{framework}_") for name in sorted(families) if name.startswith(f"{framework}_")]
    if not only:
        return np.full(np.shape(gated), "", dtype=object)
    there = np.isin(wanted, only)
    return np.asarray([f"{framework}_{name}" for name in np.where(there, wanted, only[-1])], dtype=object)


def _families(name: str) -> frozenset[str]:
    try:
        return frozenset(load_calibration(known(name)).grouped_families)
    except Unexpressed:
        return frozenset()
