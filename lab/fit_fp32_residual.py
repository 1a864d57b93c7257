"""Fit the residuals of fp32 GEMMs without tensor cores and write ``cost/correction/data/residual/*.fp32.npz``.

Development only (torch, pandas, pyarrow, the shared data): ``python lab/fit_fp32_residual.py SHARED``.
One network is fitted on all devices together, with a one-hot input for the device; that input is then folded into the
first bias, so that each device gets its own file in the format of lab/fit_residual.py. Four devices have only a few
hundred shapes: fitted alone, L4 and MI100 have 1.2 and 2 times the error on held-out weights. Rows and the held-out
fifth of the weights (n, k) are those of lab/fit_gemm.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fit_gemm import fp32_job, predictor
from fit_residual import Rows, lengths_of, record_of, save, trained, windows_of, write
from networks import network
from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.correction.gemm_features import general_features
from sartor.cost.correction.network import Residual, residual_records
from sartor.cost.gpu import gemm as cost_gemm
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType

GPUS = (
    "a100_pcie_40gb", "a100_pcie_80gb", "l4", "mi100", "mi210", "p100_pcie_16gb", "p4", "t4", "v100_pcie_32gb",
)  # fmt: skip
WIDTH, EPOCHS = 64, 60
GAIN = 0.75
"""A network ships only if its error on held-out weights is below this share of the formula's error. L4's does not: its
clock varies under the 72 W limit (16.9 to 15.4%)."""
TIMES = 3
"""How often the rows of devices with few rows are repeated."""


def main(shared: Path) -> None:
    torch.set_num_threads(1)
    rows = [rows_of(shared, gpu) for gpu in GPUS]
    trials = fit(rows, [~each.held_out for each in rows])
    table = {key: dict(value) for key, value in residual_records().items()}
    finals = fit(rows, [np.ones_like(each.held_out) for each in rows])
    for gpu, each, trial, final in zip(GPUS, rows, trials, finals, strict=True):
        record = record_of(gpu, "fp32", each, trial) | few_lengths(each)
        print(gpu, record["formula"], record["held_out"], flush=True)
        if record["held_out"]["mape"] < GAIN * record["formula"]["mape"]:
            table[f"{gpu}.fp32"] = record
            save(f"{gpu}.fp32", final)
    write(table)


def rows_of(shared: Path, gpu: str) -> Rows:
    job, device = fp32_job(shared, gpu), load_gpu(gpu)
    c = load_calibration(device).gemm[DType.FP32]
    sizes = {name: job.rows[name].to_numpy(dtype=np.float64) for name in ("m", "n", "k", "batch")}
    across = (job.rows.layout == "NN").to_numpy(dtype=np.float64)
    b, m, n, k = (sizes[name] for name in ("batch", "m", "n", "k"))
    moved = 4 * b * (m * k + n * k + m * n) - device.l2_bytes
    floor = np.maximum(2 * b * m * n * k / device.peak_flops_per_s[DType.FP32], moved / device.hbm_bytes_per_s)
    machine = cost_gemm._machine(device, DType.FP32, c, Clock.BOOST)
    return Rows(
        sizes=job.rows[["batch", "m", "n", "k"]],
        seconds=job.rows.us.to_numpy(dtype=np.float64) * 1e-6,
        held_out=job.rows.held_out.to_numpy(),
        formula_s=predictor(job, job.rows)(c),
        floor_s=floor,
        features=general_features({**sizes, "across": across}, machine, c, device),
        large=(m >= 512) & (n >= 512) & (k >= 512),
        launch_s=c.launch_s,
        coefficients=c,
        source=job.source,
        linear=(job.rows.layout == "TN").to_numpy(),
    )


MANY = 100
"""Lengths of linear layers from which on a table holds sizes at random (thousands), not those of models (25 to 28)."""


def few_lengths(rows: Rows) -> dict[str, Any]:
    """The n, k and m of linear layers, where a table holds few."""
    held = lengths_of(rows.sizes[rows.linear], "nkm")
    return {"lengths": held} if max(map(len, held)) < MANY else {}


def fit(rows: Sequence[Rows], chosen: Sequence[Any]) -> list[Residual]:
    """One network per device, from one fit on all: least absolute error (smooth below 2%) of ln(measured / formula)."""
    torch.manual_seed(0)
    targets = [np.log(each.seconds / each.formula_s)[where] for each, where in zip(rows, chosen, strict=True)]
    spans = [np.quantile(target, [0.001, 0.999]) for target in targets]
    seen = [each.features[:, where] for each, where in zip(rows, chosen, strict=True)]
    most = max(len(target) for target in targets)
    times = [TIMES if TIMES * len(target) < most else 1 for target in targets]
    x = np.concatenate([np.tile(part, t) for part, t in zip(seen, times, strict=True)], axis=1)
    owner = np.concatenate([np.full(len(y) * t, i) for i, (y, t) in enumerate(zip(targets, times, strict=True))])
    y = np.concatenate([np.tile(np.clip(y, *s), t) for y, s, t in zip(targets, spans, times, strict=True)])
    mean, scale = x.mean(axis=1, keepdims=True), x.std(axis=1, keepdims=True) + 1e-6
    which = np.eye(len(rows), dtype=np.float32)[owner]
    z = torch.tensor(np.concatenate([((x - mean) / scale).T, which], axis=1).astype(np.float32))
    net = trained(z, torch.tensor(y, dtype=torch.float32), WIDTH, EPOCHS)
    folded = [_folded(net, len(x), i) for i in range(len(rows))]
    made = []
    for gpu, part, layers, (least, most), each in zip(GPUS, seen, folded, spans, rows, strict=True):
        scaled = ((part - mean) / scale).astype(np.float32)
        ends = scaled.min(1, keepdims=True), scaled.max(1, keepdims=True)
        windows = windows_of(each.sizes)
        made.append(network(gpu, (mean, scale), ends, layers, (float(least), float(most)), windows=windows))
    return made


def _folded(net: Any, inputs: int, device: int) -> tuple[tuple[Any, Any], ...]:
    """The layers for one device: its own one-hot input is 1, the others are 0."""
    linear = [part for part in net if isinstance(part, torch.nn.Linear)]
    layers = [(each.weight.detach().numpy(), each.bias.detach().numpy()[:, None]) for each in linear]
    weight, bias = layers[0]
    first = (weight[:, :inputs], bias + weight[:, inputs + device, None])
    return (first, *layers[1:])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
