"""Fit one set of GEMM coefficients to all generations at once and write ``cost/correction/data/joint.toml``.

Development only (scipy, pandas, pyarrow, the shared data): ``python lab/fit_joint.py SHARED [bf16 | bf16.hopper]``.
Devices that were never measured borrow these coefficients. The formula is ``sartor.cost.gpu.tiles``, scaling between
devices is ``cost.correction.scaling``; generations have equal weight. The fit is repeated with each generation held
out: those coefficients go to lab/joint_held_out.toml (for lab/kin_docs.py), their errors on the held-out generation to
joint.toml, and the interval is wide enough to cover these errors.
"""

from __future__ import annotations

import datetime
import sys
import tomllib
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fit_gemm
from sartor.cost.correction.calibration import load_calibration
from sartor.cost.correction.carrying import REFERENCE, Rates, rescaled
from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType

JOINT = fit_gemm.OUT / "joint.toml"
HELD_OUT = Path(__file__).resolve().parent / "joint_held_out.toml"
DEVICES = ("a100_sxm", "h200_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300", "rtx_pro_6000_server")
"""NVIDIA devices with tensor cores that have measured GEMMs of linear layers."""
WARP = ("a100_sxm", "rtx_pro_6000_server")
"""Devices with warps that feed the tensor cores from registers (mma.sync), as Ada's and Ampere's smaller dies do."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One entry of joint.toml."""

    dtype: DType
    fitted: tuple[str, ...]
    judged: tuple[str, ...]
    """Devices whose generations are held out in turn."""
    between: str = ""
    """Entry that the fit is averaged with (geometric mean of the coefficients)."""
    out_part: float = 0.0
    """Share of L2 in which results stay. 0.5 reduces the error of 16-bit GEMMs on held-out generations from 11.6 to
    10.8%; 1.0 does the same over all devices, less for the two of ``WARP``. Narrow GEMMs got worse (fp8 13.1 to 14.4%
    on Blackwell, 15.7 to 19.6% on Hopper): their rows include narrowing the operands (2026-11-25)."""
    more: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    """Coefficients fitted besides: first, least, most."""
    rows: int = 900
    """Rows per generation."""
    evaluations: int = 11
    """Steps of the fit."""
    bare: tuple[str, ...] = ()
    """Devices whose int8 stands in for an fp8 they lack: the same rate, and rows that time no kernel that narrows."""

    def dtype_on(self, gpu: str) -> DType:
        return DType.INT8 if gpu in self.bare else self.dtype


NARROWING = {"quantize_more_s": (8e-6, 1e-8, 4e-5), "quantize_half": (3e5, 1e4, 3e7)}
"""What narrowing many elements takes more: with it fp8 of a generation left out is 12.6% off on Hopper (15.3% without,
same rows) and 12.5% on Blackwell (12.7%); nvfp4 21.0 for 20.8% (2026-11-26)."""
OF_NARROWING = ("quantize_s", "quantize_bytes", "quantize_more_s", "quantize_half")
HOPPER = ("h100_sxm", "h200_sxm")


FITS = {
    "bf16": Fit(dtype=DType.BF16, fitted=DEVICES, judged=DEVICES, out_part=0.5),
    "fp8": Fit(
        dtype=DType.FP8,
        fitted=(*HOPPER, *DEVICES[2:-1]),
        judged=(*HOPPER, *DEVICES[2:]),
        more=NARROWING,
        rows=5000,
        evaluations=30,
    ),
    "nvfp4": Fit(dtype=DType.NVFP4, fitted=DEVICES[2:], judged=DEVICES[2:]),
    "bf16_warp": Fit(dtype=DType.BF16, fitted=WARP[1:], judged=WARP, between="bf16", out_part=0.5),
    "fp8_warp": Fit(
        dtype=DType.FP8, fitted=WARP, judged=WARP, more=NARROWING, rows=5000, evaluations=30, bare=WARP[:1]
    ),
}
"""``_warp`` entries are for devices like those in ``WARP``. Narrow GEMMs of the two kinds of devices differ by more
than their rates: fitted together, both get worse (docs/concepts/gemm.md). Eight bits of the kind carry: A100's int8
prices fp8 of RTX PRO 6000 16% off where Hopper and Blackwell have 20%, and back 20% where they have 24%
(2026-11-26)."""
JUDGED = 6000
"""Rows per device for the errors of a fit."""
COPIES = 5.0
"""Copies of the weights that the tables' collector rotates over (data/measured, README)."""
SCALARS = {
    **fit_gemm.SCALARS,
    "l2_rate": (0.3, 0.05, 1.0),
    "throttle_s": fit_gemm.THROTTLE["throttle_s"],
}
TILES = fit_gemm.TILES_TABLE


def main(shared: Path, wanted: list[str]) -> None:
    for word in FITS:
        each = FITS[word]
        for left_out in [*dict.fromkeys(load_gpu(name).generation for name in each.judged), ""]:
            if wanted and word not in wanted and f"{word}.{left_out}" not in wanted:
                continue
            path, key = (HELD_OUT, f"{left_out}.{word}") if left_out else (JOINT, word)
            table = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            pool = each.judged if each.between and left_out else each.fitted
            devices = [name for name in pool if load_gpu(name).generation != left_out]
            c = fit(shared, devices, each)
            other = (table[left_out] if left_out else table).get(each.between or each.dtype.value)
            if each.between:
                c = half_way(c, other["gemm"])
            elif not set(devices) - set(each.bare):
                c = replace(c, **{name: other["gemm"][name] for name in OF_NARROWING})
            _put(table, key, {"gemm": _as_dict(c)})
            if left_out:
                judged = [name for name in each.judged if load_gpu(name).generation == left_out]
                _put(table, key, {"errors": {name: errors(shared, name, each, c) for name in judged}})
                print(key, {n: e["mape"] for n, e in table[left_out][word]["errors"].items()}, flush=True)
            path.write_text(_toml(table), encoding="utf-8")
    finish(shared)


def finish(shared: Path) -> None:
    """Add to joint.toml the rows of each fit, its errors on held-out generations and the interval these need."""
    table, held = (tomllib.loads(path.read_text(encoding="utf-8")) for path in (JOINT, HELD_OUT))
    for word, entry in table.items():
        dtype, fitted = FITS[word].dtype, FITS[FITS[word].between or word].fitted
        judged = word if FITS[word].judged else dtype.value
        found = [each[judged]["errors"] for each in held.values() if judged in each]
        devices = {name: error for errors_ in found for name, error in errors_.items()}
        means = {
            key: float(np.mean([np.mean([e[key] for e in errors_.values()]) for errors_ in found]))
            for key in ("mape", "median", "log_sigma", "log_sigma_small")
        }
        entry["gemm"] |= {key: round(means[key], 4) for key in ("log_sigma", "log_sigma_small")}
        entry["provenance"] = {
            "source": f"data/measured ({'gemm_fp16_bf16' if dtype is DType.BF16 else 'gemm_lowbit'}.parquet), "
            + ", ".join(fitted),
            "date": datetime.date.today().isoformat(),
            "lender": "joint",
            "rows": int(sum(len(rows_of(shared, name, FITS[word].dtype_on(name))) for name in fitted)),
            "held_out": {key: round(means[key], 4) for key in ("mape", "median")},
            "held_out_devices": {name: error["mape"] for name, error in devices.items()},
        }
    JOINT.write_text(_toml(table), encoding="utf-8")


@cache
def rows_of(shared: Path, gpu: str, dtype: DType) -> pd.DataFrame:
    """One target per shape, without GEMMs narrower than a scale block, which are host-bound."""
    name = "gemm_fp16_bf16.parquet" if dtype is DType.BF16 else "gemm_lowbit.parquet"
    if not len(_table(shared, name, gpu, dtype)):
        return pd.DataFrame()
    return fit_gemm.table_job(shared, gpu, dtype).rows


@cache
def _table(shared: Path, name: str, gpu: str, dtype: DType) -> pd.DataFrame:
    label = {DType.BF16: "bfloat16", DType.INT8: "sq"}.get(dtype, dtype.value)
    filters = [("gpu", "==", gpu), ("dtype", "==", label)]
    return pd.read_parquet(shared / "data" / "measured" / name, columns=["m"], filters=filters)


def half_way(c: GemmCoefficients, other: dict[str, Any]) -> GemmCoefficients:
    """Coefficients as geometric means of two fits."""
    shares = {(m, n): share for m, n, share in other["tiles"]}
    menu = tuple((m, n, round(float((share * shares[m, n]) ** 0.5), 3)) for m, n, share in c.tiles if (m, n) in shares)
    scalars = {name: float(f"{(getattr(c, name) * other[name]) ** 0.5:.4g}") for name in SCALARS | {"throttle": ()}}
    return replace(c, tiles=menu, **scalars)


def fit(shared: Path, devices: list[str], wanted: Fit) -> GemmCoefficients:
    """Least squares of ln(predicted / measured) with a robust loss and equally many rows per generation."""
    parts = []
    for name in devices:
        peers = sum(load_gpu(each).generation == load_gpu(name).generation for each in devices)
        rows = rows_of(shared, name, wanted.dtype_on(name))
        parts.append(_judge(name, wanted, rows.sample(min(len(rows), wanted.rows // peers), random_state=0)))
    names = _names(wanted)
    throttle = _throttle([name for name in devices if name not in wanted.bare] or list(HOPPER), wanted.dtype)
    spans = [*names.values(), *fit_gemm.EFFICIENCY, *[(0.97, 0.4, 1.0)] * len(TILES)]
    first, low, high = (np.log([span[i] for span in spans]) for i in range(3))
    head = len(names) + 3

    def residual(x: Any) -> Any:
        c = _coefficients(x, wanted, throttle)
        return np.concatenate([*(judge(c) for judge in parts), 0.3 * x[head:]])

    first = np.clip(first, low + 1e-6, high - 1e-6)
    options = {
        "loss": "soft_l1",
        "f_scale": 0.05,
        "diff_step": 2e-3,
        "max_nfev": wanted.evaluations,
        "bounds": (low, high),
    }
    return _coefficients(least_squares(residual, first, **options).x, wanted, throttle)


def _throttle(devices: list[str], dtype: DType) -> float:
    """Throttle of the reference device: the median of the devices' own fits, scaled by FLOPs per joule. Fitted freely,
    it was traded against the tiles' shares of peak, which do not depend on power."""
    per_joule = []
    for name in devices:
        rates = Rates.of(load_gpu(name))
        assert rates is not None
        per_joule.append(
            load_calibration(load_gpu(name)).gemm[dtype].throttle * REFERENCE.flops_per_joule / rates.flops_per_joule
        )
    return float(np.median(per_joule))


def errors(shared: Path, gpu: str, wanted: Fit, c: GemmCoefficients) -> dict[str, float]:
    rows = rows_of(shared, gpu, wanted.dtype_on(gpu))
    rows = rows.sample(min(len(rows), JUDGED), random_state=1)
    error = _judge(gpu, wanted, rows)(c)
    short = rows.us.to_numpy() * 1e-6 * np.exp(error) < 8 * _on(gpu, c).launch_s
    long, small = (float(np.quantile(np.abs(error[part]), 0.8) / 1.2816) for part in (~short, short))
    relative = np.abs(np.exp(error) - 1)
    found = {"mape": relative.mean(), "median": np.median(relative), "bias": np.median(np.exp(error))}
    found |= {"log_sigma": long, "log_sigma_small": small}
    return {key: round(float(value), 4) for key, value in found.items()}


def _judge(gpu: str, wanted: Fit, rows: pd.DataFrame) -> Any:
    """A function from the joint coefficients to ln(predicted / measured) of one device's rows."""
    job = fit_gemm.Job(gpu=load_gpu(gpu), dtype=wanted.dtype_on(gpu), rows=rows, tiles=TILES)
    predict, measured = fit_gemm.predictor(job, rows), rows.us.to_numpy() * 1e-6
    none = dict.fromkeys(OF_NARROWING[:3], 0.0) if gpu in wanted.bare else {}
    return lambda c: np.log(predict(_on(gpu, replace(c, **none))) / measured)


def _on(gpu: str, c: GemmCoefficients) -> GemmCoefficients:
    rates = Rates.of(load_gpu(gpu))
    assert rates is not None
    moved: GemmCoefficients = rescaled(c, REFERENCE, rates)
    return replace(moved, input_penalty=(0.0,) * 8, output_penalty=(0.0,) * 8)


def _names(wanted: Fit) -> dict[str, tuple[float, float, float]]:
    return SCALARS | (fit_gemm.QUANTIZE if wanted.dtype is not DType.BF16 else {}) | wanted.more


def _coefficients(x: Any, wanted: Fit, throttle: float) -> GemmCoefficients:
    values, names = np.exp(x), list(_names(wanted))
    e, a, b = values[len(names) : len(names) + 3]
    factors = values[len(names) + 3 :]
    menu = tuple(
        (m, n, round(min(1.1, float(e * m / (m + a) * n / (n + b) * f)), 3))
        for (m, n), f in zip(TILES, factors, strict=True)
    )
    scalars = {name: float(f"{value:.4g}") for name, value in zip(names, values, strict=False)}
    known = {"weight_copies": COPIES, "out_part": wanted.out_part, "throttle": float(f"{throttle:.4g}")}
    return GemmCoefficients(tiles=menu, **known, **scalars)


def _as_dict(c: GemmCoefficients) -> dict[str, Any]:
    return {f.name: getattr(c, f.name) for f in fields(c) if getattr(c, f.name) != f.default}


def _put(table: dict[str, Any], key: str, values: dict[str, Any]) -> None:
    for part in key.split("."):
        table = table.setdefault(part, {})
    table.update(values)


def _toml(table: dict[str, Any], above: str = "") -> str:
    """Nested tables as TOML; the innermost tables of errors and rows stay on one line."""
    about = "# Written by lab/fit_joint.py. Coefficients of the reference device of cost/correction/carrying.py."
    lines = [] if above else [about]
    for key, value in table.items():
        name = f"{above}.{key}" if above else key
        if isinstance(value, dict) and key in ("gemm", "provenance", "errors"):
            lines += ["", f"[{name}]", *(f"{k} = {_value(v)}" for k, v in value.items())]
        elif isinstance(value, dict):
            lines.append(_toml(value, name))
    return "\n".join(lines) + ("" if above else "\n")


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
