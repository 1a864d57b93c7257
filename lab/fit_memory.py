"""Fit memory-bound kernels and write them into ``cost/correction/data``.

    python lab/fit_memory.py ../shared [gpu ...]

A device has one launch time and one L2; every kernel has its own share of HBM bandwidth and start time. A kind takes
the values of its most common kernel. A fifth of the sizes is held out, by a hash of width and of rows // 7.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from fit_grouped import OUT, errors, put
from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.cost.correction.coefficients import MemoryBoundCoefficients
from sartor.cost.gpu.memory_bound import memory_bound_cost
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.operators import MemoryBound
from sartor.records.rows import MEMORY_BOUND

TABLES = {"a100_sxm": ("a100_80gb_unspecified",)}
"""vidur does not state which A100 80 GB it used; its times have a resolution of 1 us."""
COMMONEST = {
    "norm": ("rmsnorm", "layernorm"),
    "activation": ("silu_and_mul", "gelu", "gelu_new", "relu"),
    "rotary": ("rope",),
    "residual": ("add",),
    "softmax": ("softmax",),
}
GPUS = (
    "a100_sxm", "h100_sxm", "a40", "a100_pcie_40gb", "a100_pcie_80gb", "v100_pcie_32gb", "t4", "l4", "p100_pcie_16gb",
    "p4",    "mi100", "mi210",
)  # fmt: skip
LLMCOMPASS = "PrincetonUniversity/LLMCompass"
EAGER = "sitar-lab/NeuSight"


def main(shared: Path, wanted: list[str]) -> None:
    table = pd.read_parquet(shared / "data" / "measured" / "memory_bound.parquet").astype({"gpu": str, "op": str})
    table = table[table.flag == 0]
    llmcompass = table[table.source.astype(str) == LLMCOMPASS]
    table = table[table.source.astype(str) != LLMCOMPASS]
    for name in wanted or GPUS:
        rows = table[table.gpu.isin(TABLES.get(name, (name,)))]
        fit(name, load_gpu(name), rows, llmcompass[llmcompass.gpu == name])


def fit(name: str, gpu: Gpu, table: pd.DataFrame, more: pd.DataFrame) -> None:
    eager = bool((table.source.astype(str) == EAGER).any())
    keys = ["op", "dtype", "rows", "cols", "bytes"]
    rows = table.groupby(keys, observed=True).latency_us.median().rename("us").reset_index()
    rows["held_out"] = (rows.cols * 7919 + (rows.rows // 7) * 31) % 5 == 0
    kernels = sorted(set(rows.op))
    launch, kinds = ("eager_launch_s", "host_kinds") if eager else ("launch_s", "kinds")
    spans = {launch: (2.5e-5, 2e-6, 8e-5) if eager else (2e-6, 2e-7, 2e-5)}
    spans |= {"l2_part": (0.4, 0.01, 1.0), "l2_speedup": (2.0, 1.0, 6.0)}
    spans |= {f"share_{op}": (0.8, 0.1, 1.0) for op in kernels} | {f"start_{op}": (1e-6, 1e-8, 2e-5) for op in kernels}
    known = replace(load_calibration(gpu), torch_streams=None)
    if not eager:
        timed = replace(known.memory_bound, framework="+".join(sorted(set(table.framework.astype(str)))))
        known = replace(known, memory_bound=timed)
    train = rows[~rows.held_out]
    sample = train.sample(min(len(train), 4000), random_state=0)
    first, low, high = (np.log([span[i] for span in spans.values()]) for i in range(3))

    def calibrated(x: Any, sigmas: dict[str, float] | None = None) -> Calibration:
        v = {key: float(value) for key, value in zip(spans, np.exp(x), strict=True)}
        listed = {op: (op, v[f"share_{op}"], v[f"start_{op}"], (sigmas or {}).get(op, 0.2)) for op in kernels}
        for kind, ops in COMMONEST.items():
            here = [listed[op] for op in ops if op in listed]
            if here and kind not in listed:
                listed[kind] = (kind, *here[0][1:])
        general = {key: v[key] for key in (launch, "l2_part", "l2_speedup")}
        plainest = listed.get("residual", next(iter(listed.values())))  # used for kinds that were not measured
        values = general | {kinds: tuple(listed.values()), "hbm_share": plainest[1]}
        return replace(known, memory_bound=replace(known.memory_bound, **values))  # type: ignore[arg-type]

    found = least_squares(
        lambda x: np.log(_ratio(sample, gpu, calibrated(x), eager)),
        first,
        loss="soft_l1",
        f_scale=0.1,
        diff_step=1e-3,
        max_nfev=40,
        bounds=(low, high),
    )
    held = rows[rows.held_out]
    ratio = _ratio(held, gpu, calibrated(found.x), eager)
    sigmas = {op: _sigma(ratio[held.op.to_numpy() == op], ratio) for op in kernels}
    result = calibrated(found.x, sigmas).memory_bound
    result = replace(result, log_sigma=_sigma(ratio, ratio))
    added = sorted(set(more.op) - set(kernels)) if len(more) else []
    if added and not eager:
        result = replace(result, kinds=(*result.kinds, *(_large(more[more.op == op], gpu, op) for op in added)))
    result = replace(result, eager_kinds=eager_kinds(more, gpu))
    how = "eager, the host waits for each kernel" if eager else "kernel times"
    sources = ", ".join(sorted(set(table.source.astype(str))))
    record = {
        "source": f"data/measured/memory_bound.parquet ({sources}), {'/'.join(TABLES.get(name, (name,)))}, {how}"
        + (f"; {', '.join(added)}: {LLMCOMPASS}, 64 MB and more" if added else ""),
        "rows": len(rows),
        "fit": errors(_ratio(train, gpu, calibrated(found.x), eager)),
        "held_out": errors(ratio),
    }
    names = ["framework"] if result.framework else []
    names += [launch, "l2_part", "l2_speedup", "hbm_share", "log_sigma", kinds]
    names += ["eager_kinds"] if result.eager_kinds else []
    put(
        OUT / f"{name}.toml",
        {"memory_bound": {n: _value(result, n) for n in names}},
        {"memory_bound": record},
        "memory",
    )
    by = held.assign(error=np.abs(ratio - 1)).groupby("op").error.mean().round(3).to_dict()
    print(name, {k: round(v, 3) for k, v in record["held_out"].items()}, by, flush=True)  # type: ignore[attr-defined]


def _large(rows: pd.DataFrame, gpu: Gpu, op: str) -> tuple[str, float, float, float]:
    """A kernel timed with its eager launch: share of HBM bandwidth from 60 MB on, after subtracting the least time."""
    large = rows[rows.bytes >= 6e7]
    rate = large.bytes / ((large.latency_us - rows.latency_us.min()) * 1e-6)
    share = float(np.exp(np.log(rate).mean())) / gpu.hbm_bytes_per_s
    return op, min(share, 1.0), 1.5e-6, max(0.2, float(np.log(rate).std()))


def eager_kinds(rows: pd.DataFrame, gpu: Gpu) -> tuple[tuple[str, float, float, float, float, float], ...]:
    """Kernels launched one by one from the host, 16-bit elements: least time, start time and share of HBM bandwidth of
    each; the interval is from the two halves of the sizes, held out in turn."""
    found = []
    for op, part in rows.groupby("op"):
        part = (
            part.groupby(["rows", "cols", "bytes"], observed=True)
            .latency_us.median()
            .reset_index()
            .sort_values("bytes")
        )
        size, time_s = part.bytes.to_numpy(dtype=np.float64), part.latency_us.to_numpy(dtype=np.float64) * 1e-6
        odd = np.arange(size.size) % 2 == 1
        missed = np.empty(size.size)
        for test in (odd, ~odd):
            missed[test] = np.log(_host_s(_host_fit(size[~test], time_s[~test]), size[test]) / time_s[test])
        least, start, slope = _host_fit(size, time_s)
        share = min(1 / (slope * gpu.hbm_bytes_per_s), 1.0)
        print(gpu.name, op, size.size, "held out", round(float(np.abs(np.expm1(missed)).mean()), 3), flush=True)
        found.append((str(op), 2.0, least, start, share, max(0.02, float(np.quantile(np.abs(missed), 0.8) / 1.2816))))
    return tuple(found)


def _host_fit(size: Any, time_s: Any) -> tuple[float, float, float]:
    """Fit least time, start time and seconds per byte."""
    first = np.log([time_s.min(), time_s.min() / 2, (time_s[-1] - time_s.min()) / size[-1]])
    found = least_squares(lambda x: np.log(_host_s(np.exp(x), size) / time_s), first, loss="soft_l1", f_scale=0.05)
    least, start, slope = (float(v) for v in np.exp(found.x))
    return least, start, slope


def _host_s(values: Any, size: Any) -> Any:
    least, start, slope = values
    return np.maximum(least, start + slope * size)


def _value(c: MemoryBoundCoefficients, name: str) -> Any:
    return getattr(c, name)


def _sigma(ratio: Any, otherwise: Any) -> float:
    return max(0.01, float(np.quantile(np.abs(np.log(ratio if ratio.size >= 20 else otherwise)), 0.8) / 1.2816))


def _ratio(rows: pd.DataFrame, gpu: Gpu, known: Calibration, eager: bool) -> Any:
    out = np.empty(len(rows))
    ops = rows.op.to_numpy()
    sizes, measured = rows.bytes.to_numpy(dtype=np.float64), rows.us.to_numpy(dtype=np.float64) * 1e-6
    for op in pd.unique(ops):
        where = np.flatnonzero(ops == op)
        made = MemoryBound(name="fit", kind=MEMORY_BOUND[op], rows=1, cols=1, bytes_moved=sizes[where], kernel=op)
        out[where] = memory_bound_cost(made, gpu, known, eager=eager).time_s / measured[where]
    return out


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
