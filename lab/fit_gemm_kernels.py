"""Fit corrections to GEMMs of few bits by framework: ``<gpu>.<dtype>.framework`` in ``cost/correction/data/residual/``.

Development only (pandas, pyarrow, the shared data; no torch): ``python lab/fit_gemm_kernels.py SHARED [gpu.dtype
...]``. One network for all frameworks of a table, each one of its inputs, over the formula of their median. Rows,
features, rows between the measured ones and the held-out fifth of the weights are those of lab/fit_residual.py, the
training is that of lab/fit_attention_kernels.py. Seeded.

``SHARED quantizing`` fits only the kernels that quantize the input: TensorRT-LLM's fp8 rows take what the 16-bit
coefficients give at the peak and bytes of fp8, three kernels (``quantizing.py``) and their traffic.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fit_attention_kernels import put, trained
from fit_residual import EACH, Rows, between, borrowed, coverage, predict, record_of, rows_of, save, sigma_pair
from networks import bounds_of, network
from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.correction.gemm_features import ALONE
from sartor.cost.correction.network import Residual, residual_records
from sartor.cost.gpu.gemm import gemm_cost
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, Gemm

TABLES = (
    *(f"{gpu}.{dtype}" for gpu in ("h100_sxm", "h200_sxm") for dtype in ("fp8", "fp8_block")),
    *(
        f"{gpu}.{dtype}"
        for gpu in ("b200_sxm", "gb200", "b300_sxm", "gb300")
        for dtype in ("fp8", "fp8_block", "nvfp4")
    ),
    "rtx_pro_6000_server.fp8",
    "rtx_pro_6000_server.nvfp4",
)
"""Tables of two frameworks and more."""


def main(shared: Path, wanted: list[str]) -> None:
    trials: dict[str, Residual] = {}
    for name in (f"{each}{EACH}" for each in wanted or TABLES):
        gpu, _, what = name.partition(".")
        rows = rows_of(shared, gpu, what, gpu)
        trials[name] = fit(gpu, rows, ~rows.held_out)
        time_s = predict(trials[name], rows)
        put(name, record_of(gpu, what, rows, time_s) | by_framework(rows, time_s))
        save(name, fit(gpu, rows, np.ones_like(rows.held_out)))
        record = residual_records()[name]
        print(name, "formula", record["formula"]["mape"], "network", record["each"], flush=True)
    for name, trial in trials.items():
        table = {key: dict(value) for key, value in residual_records().items()}
        put(name, borrowed(shared, name, trial, table))
    kernels_of_quantizing(shared, dict.fromkeys(name.partition(".")[0] for name in wanted or TABLES))


def kernels_of_quantizing(shared: Path, gpus: Iterable[str]) -> None:
    """Record ``quantizing`` of each GPU beside every network of its frameworks: their kernels are alike."""
    for gpu in gpus:
        found = quantizing(gpu, rows_of(shared, gpu, f"fp8{EACH}", gpu))
        print(gpu, found, flush=True)
        for name in TABLES:
            if name.startswith(f"{gpu}."):
                put(f"{name}{EACH}", found)


def quantizing(gpu: str, rows: Rows) -> dict[str, Any]:
    """Seconds of a quantizing kernel and per byte of its traffic, by least absolute deviation of TensorRT-LLM's fp8
    rows (smooth below 5%), and their error on weights withheld."""
    of_one = (rows.sizes.library == rows.libraries.index("trtllm")).to_numpy()
    sizes, seconds, held = rows.sizes[of_one], rows.seconds[of_one], rows.held_out[of_one]
    m, n, k = (sizes[name].to_numpy(dtype=np.int64) for name in "mnk")
    device, kernels = load_gpu(gpu), ALONE["trtllm", DType.FP8]
    bare = Gemm(name="fit", m=m, n=n, k=k, dtype=DType.FP8, quantized=True)
    gemm_s = np.asarray(gemm_cost(bare, device, load_calibration(device), clock=Clock.BOOST).time_s)

    def time_s(x: Any) -> Any:
        return gemm_s + kernels.kernels * x[0] * 1e-6 + kernels.element_bytes * x[1] * 1e-12 * m * k

    def fitted(where: Any) -> Any:
        off = lambda x: np.log(time_s(x) / seconds)[where]  # noqa: E731
        return least_squares(off, (3.0, 0.4), bounds=(0, np.inf), loss="soft_l1", f_scale=0.05).x

    unseen = np.abs(time_s(fitted(~held)) / seconds - 1)[held]
    kernel, byte = fitted(np.ones_like(held))
    return {
        "quantizing": [round(kernel * 1e-6, 9), round(byte * 1e-12, 16)],
        "quantizing_mape": round(unseen.mean(), 4),
    }


def by_framework(rows: Rows, time_s: Any) -> dict[str, Any]:
    """Every framework's own standard deviations, in the order of the network's inputs, and its held-out errors."""
    sigmas, each = [], {}
    for i, name in enumerate(rows.libraries):
        own = (rows.sizes.library == i).to_numpy()
        held = replace(rows, held_out=rows.held_out & own)
        error = np.abs(time_s / rows.seconds - 1)[held.held_out]
        sigmas.append(list(sigma_pair("", time_s, held, held.held_out).values()))
        each[name] = {"mape": round(float(error.mean()), 4), "coverage": coverage(time_s, held)}
    return {"each_log_sigma": sigmas, "each": each}


def fit(gpu: str, rows: Rows, where: Any) -> Residual:
    """Fit ln(measured / formula) by least absolute error (smooth below 2%)."""
    x, y = rows.features[:, where], np.log(rows.seconds / rows.formula_s)[where]
    mean, scale = x.mean(axis=1, keepdims=True), x.std(axis=1, keepdims=True) + 1e-6

    def scaled(values: Any) -> Any:
        return ((values - mean) / scale).astype(np.float32).T.copy()

    assert rows.features_of is not None
    z = scaled(x)
    sets = [
        (np.concatenate([z, scaled(rows.features_of(sizes))]), np.concatenate([y, goals]).astype(np.float32))
        for sizes, goals, _ in between(rows, where)
    ]
    weights, biases = trained(sets)
    seen = np.stack([(part.min(axis=0), part.max(axis=0)) for part, _ in sets])
    ends = seen[:, 0].min(axis=0)[:, None], seen[:, 1].max(axis=0)[:, None]
    layers = [(w.T, b[:, None]) for w, b in zip(weights, biases, strict=True)]
    return network(gpu, (mean, scale), ends, layers, bounds_of(y), libraries=rows.libraries)


if __name__ == "__main__":
    if sys.argv[2:3] == ["quantizing"]:
        kernels_of_quantizing(Path(sys.argv[1]), dict.fromkeys(name.partition(".")[0] for name in TABLES))
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
