"""Fit the residuals on top of the GEMM formula and write ``hardware/calibration/residual/``.

Development only (torch, pandas, pyarrow, the shared data): ``python tools/fit_residual.py SHARED [gpu.dtype ...]``.
Features and inference are ``sartor.cost.residual``'s own. The rows and the held-out fifth of weights (n, k) are
tools/fit_gemm.py's: a network is fitted on four fifths, its errors on the fifth are written down, and the network
written is fitted on all rows. Leave-one-out: a device's rows against a relative's coefficients and residual, both
fitted without that device. Seeded; two runs on one machine write the same bytes.
"""

from __future__ import annotations

import datetime
import sys
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fit_gemm import table_job
from sartor.cost import gemm as cost_gemm
from sartor.cost.gemm import roofline_s
from sartor.cost.gemm_residual import gemm_features, table_length
from sartor.cost.residual import forward
from sartor.cost.tiles import Problems, evaluate
from sartor.hardware.calibration import Clock, GemmCoefficients, load_calibration
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.hardware.residual import Residual, fingerprint, residual_records
from sartor.operators import DType, Gemm

OUT = Path(__file__).resolve().parent.parent / "src" / "sartor" / "hardware" / "calibration" / "residual"
WIDTH, LAYERS, EPOCHS, BATCH, RATE, DECAY = 80, 3, 150, 512, 6e-3, 0.1
SHORT = 8


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Measured products of one device and dtype, with the formula's time by someone's coefficients."""

    m: Any
    n: Any
    k: Any
    seconds: Any
    held_out: Any
    formula_s: Any
    roofline_s: Any
    features: Any
    """(features, rows)."""

    @property
    def large(self) -> Any:
        return (self.m >= 512) & (self.n >= 512) & (self.k >= 512)


def main(shared: Path, wanted: list[str]) -> None:
    torch.set_num_threads(1)
    OUT.mkdir(exist_ok=True)
    table = {key: dict(value) for key, value in residual_records().items()}
    trials: dict[str, Residual] = {}
    for name in wanted or DEFAULT:
        gpu, dtype = name.rsplit(".", 1)
        rows, c = rows_of(shared, gpu, dtype, gpu)
        trial = fit(gpu, rows, ~rows.held_out)
        trials[name] = trial
        held = rows.held_out
        time_s = predict(trial, rows)
        record: dict[str, Any] = {
            "gpu": gpu,
            "dtype": dtype,
            "fingerprint": fingerprint(c),
            "source": job_of(shared, gpu, dtype).source,
            "date": datetime.date.today().isoformat(),
            "rows": int(rows.m.size),
            "formula": errors(rows.formula_s, rows, held),
            "held_out": errors(time_s, rows, held),
            "fitted_on": errors(time_s, rows, ~held),
            "formula_log_sigma": c.log_sigma,
        }
        record |= sigma_pair("", time_s, rows, held, c)
        table[name] = record
        save(name, fit(gpu, rows, np.ones_like(held)))
        print(name, "formula", record["formula"], "residual", record["held_out"], flush=True)
    for name, trial in trials.items():
        table[name] |= borrowed(shared, name, trial, table)
        write(table)


@cache
def job_of(shared: Path, gpu: str, dtype: str) -> Any:
    return table_job(shared, gpu, DType(dtype))


def rows_of(shared: Path, gpu: str, dtype: str, owner: str) -> tuple[Rows, GemmCoefficients]:
    """Rows of ``gpu`` seen with the coefficients of ``owner``: its shares and seconds, the gpu's own datasheet."""
    table = job_of(shared, gpu, dtype).rows
    device, lender = load_gpu(gpu), load_gpu(owner)
    c = load_calibration(lender, DType(dtype)).gemm[DType(dtype)]
    m, n, k = (table[name].to_numpy(dtype=np.int64) for name in "mnk")
    gemm = Gemm(name="fit", m=m, n=n, k=k, dtype=DType(dtype))
    machine = cost_gemm._machine(device, DType(dtype), c, Clock.BOOST)
    arrays, shape = cost_gemm._problem(gemm, c)
    flat = Problems(**{key: np.broadcast_to(value, shape) for key, value in arrays.items()})
    return Rows(
        m=m,
        n=n,
        k=k,
        seconds=table.us.to_numpy(dtype=np.float64) * 1e-6,
        held_out=table.held_out.to_numpy(),
        formula_s=evaluate(flat, machine, c, False)["time_s"],
        roofline_s=roofline_s(gemm, device),
        features=gemm_features({"m": flat.m, "n": table_length(flat.n), "k": table_length(flat.k)}, machine, c, device),
    ), c


def fit(gpu: str, rows: Rows, where: Any) -> Residual:
    """Least absolute error (rounded off below 2%) of ln(measured / formula)."""
    torch.manual_seed(0)
    x, y = rows.features[:, where], np.log(rows.seconds / rows.formula_s)[where]
    mean, scale = x.mean(axis=1, keepdims=True), x.std(axis=1, keepdims=True) + 1e-6
    z = torch.tensor(((x - mean) / scale).T.copy())
    target = torch.tensor(y, dtype=torch.float32)
    widths = [x.shape[0], *[WIDTH] * LAYERS]
    parts: list[Any] = []
    for a, b in pairwise(widths):
        parts += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    net = torch.nn.Sequential(*parts, torch.nn.Linear(WIDTH, 1))
    with torch.no_grad():
        net[-1].weight.mul_(0.1)
        net[-1].bias.zero_()
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    steps = max(1, len(z) // BATCH)
    epochs = max(EPOCHS, min(400, 3000000 // len(z)))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * steps, pct_start=0.15)
    for _ in range(epochs):
        order = torch.randperm(len(z))
        for i in range(steps):
            batch = order[i * BATCH : (i + 1) * BATCH]
            loss = torch.nn.functional.smooth_l1_loss(net(z[batch])[:, 0], target[batch], beta=0.02)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    linear = [part for part in net if isinstance(part, torch.nn.Linear)]
    half = [(_half(each.weight.detach().numpy()), _half(each.bias.detach().numpy()[:, None])) for each in linear]
    seen = z.numpy().T
    return Residual(
        gpu=gpu,
        mean=mean.astype(np.float32),
        scale=scale.astype(np.float32),
        low=seen.min(axis=1, keepdims=True),
        high=seen.max(axis=1, keepdims=True),
        layers=tuple(half),
        formula_log_sigma=0.0,
        log_sigma=0.0,
        log_sigma_small=0.0,
        kin_log_sigma=0.0,
        kin_log_sigma_small=0.0,
    )


def _half(values: Any) -> Any:
    """As they are written: in 16 bits."""
    return values.astype(np.float16).astype(np.float32)


def predict(residual: Residual, rows: Rows) -> Any:
    log_factor, trust = forward(residual, rows.features)
    return np.maximum(rows.formula_s * np.exp(log_factor * trust, dtype=np.float64), rows.roofline_s)


def errors(time_s: Any, rows: Rows, where: Any) -> dict[str, float]:
    error = np.abs(time_s / rows.seconds - 1)
    out = {"rows": int(where.sum()), "mape": error[where].mean(), "median": np.median(error[where])}
    out |= {"p90": np.quantile(error[where], 0.9), "mape_512": error[where & rows.large].mean()}
    return {key: value if key == "rows" else round(float(value), 4) for key, value in out.items()}


def sigma_pair(prefix: str, time_s: Any, rows: Rows, where: Any, c: GemmCoefficients) -> dict[str, float]:
    """Standard deviations that put 80% of rows inside, long and short against the launch."""
    error = np.abs(np.log(time_s / rows.seconds))
    small = rows.formula_s < SHORT * c.launch_s
    long, short = (np.quantile(error[where & part], 0.8) / 1.2816 for part in (~small, small))
    return {f"{prefix}log_sigma": round(float(long), 4), f"{prefix}log_sigma_small": round(float(short), 4)}


def borrowed(shared: Path, name: str, trial: Residual, table: dict[str, Any]) -> dict[str, Any]:
    """How coefficients and residual of ``name`` do on devices of its generation, on weights it was not fitted on."""
    gpu, dtype = name.rsplit(".", 1)
    generation = load_gpu(gpu).generation
    kin = [n for n in table if n != name and n.endswith(f".{dtype}") and _gpu(n).generation == generation]
    found: dict[str, Any] = {}
    pairs = []
    for other in kin:
        rows, c = rows_of(shared, other.rsplit(".", 1)[0], dtype, gpu)
        time_s = predict(trial, rows)
        before, after = errors(rows.formula_s, rows, rows.held_out), errors(time_s, rows, rows.held_out)
        found[other.rsplit(".", 1)[0]] = {"formula": before["mape"], "mape": after["mape"], "median": after["median"]}
        pairs.append(sigma_pair("kin_", time_s, rows, rows.held_out, c))
    record = table[name]
    sigma = {f"kin_{key}": round(1.5 * record[key], 4) for key in ("log_sigma", "log_sigma_small")}
    if pairs:
        sigma = {key: round(float(np.median([pair[key] for pair in pairs])), 4) for key in pairs[0]}
        print(name, "lent to", found, sigma, flush=True)
    return sigma | ({"lent": found} if found else {})


def _gpu(name: str) -> Gpu:
    return load_gpu(name.rsplit(".", 1)[0])


def save(name: str, residual: Residual) -> None:
    arrays: dict[str, Any] = {key: getattr(residual, key) for key in ("mean", "scale", "low", "high")}
    for i, (weight, bias) in enumerate(residual.layers):
        arrays |= {f"weight_{i}": weight.astype(np.float16), f"bias_{i}": bias.astype(np.float16)}
    np.savez_compressed(OUT / f"{name}.npz", **arrays)


def write(table: dict[str, dict[str, Any]]) -> None:
    lines = ["# Written by tools/fit_residual.py. docs/concepts/residual.md says how each figure was made."]
    for name in sorted(table):
        lines += ["", f'["{name}"]', *(f"{key} = {_toml(value)}" for key, value in table[name].items())]
    (OUT / "residuals.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else repr(value)


DEFAULT = [
    *(f"{gpu}.bf16" for gpu in ("a100_sxm", "h200_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300", "rtx_pro_6000_server",
                                "arc_pro_b60")),
    *(f"{gpu}.{dtype}" for dtype in ("fp8", "fp8_block", "nvfp4")
      for gpu in ("h200_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300", "rtx_pro_6000_server")
      if (gpu, dtype) != ("h200_sxm", "nvfp4")),
    "a100_sxm.int8", "arc_pro_b60.fp8",
]  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
