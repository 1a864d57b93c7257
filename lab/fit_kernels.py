"""Fit attention and write its section of ``cost/correction/data/<gpu>.toml``.

Development only (scipy, pandas, pyarrow, the shared data): ``python lab/fit_kernels.py SHARED [gpu ...]``.
The functions of ``sartor.cost`` themselves are fitted. A fifth of each table is held out for the recorded errors (by a
hash of the fields that identify a curve, so whole curves are unseen); the coefficients are those fitted on the other
four fifths.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from fit_grouped import put_text
from sartor.cost.correction.calibration import Calibration, Clock, load_calibration
from sartor.cost.correction.coefficients import AttentionCoefficients
from sartor.cost.gpu.attention import attention_cost
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.operators import Attention

OUT = Path(__file__).resolve().parent.parent / "src" / "sartor" / "cost" / "correction" / "data"
AIC = "(ai-dynamo/aiconfigurator 095f58a5, 2026-08-21, Apache-2.0)"

Span = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Part:
    """One kernel family: rows with us and held_out, the spans to fit, and a function for seconds by a calibration."""

    section: str
    rows: pd.DataFrame
    spans: dict[str, Span]
    build: Callable[[dict[str, float]], Any]
    seconds: Callable[[pd.DataFrame, Calibration], Any]
    source: str
    sigma: str = "log_sigma"
    prefix: str = ""


def main(shared: Path, wanted: list[str]) -> None:
    for name in wanted or DEFAULT:
        gpu = load_gpu(name)
        known = load_calibration(gpu)
        sections: dict[str, list[str]] = {}
        records: list[str] = []
        for make in (prefill_parts, decode_parts):
            part = make(shared, name, gpu, known)
            if part is None or len(part.rows) < 40:
                continue
            known, lines, record = fit(part, known)
            sections.setdefault(part.section, []).extend(lines)
            records += record
            print(name, part.section, part.prefix, record[-1], flush=True)
        if not sections:
            continue
        path = OUT / f"{name}.toml"
        blocks = {key: "\n".join(lines) for key, lines in sections.items()}
        put_text(path, blocks, _by_header(records), "attention")


def _by_header(lines: list[str]) -> dict[str, str]:
    """Records by the name in their header."""
    out: dict[str, list[str]] = {}
    for line in lines:
        if line.startswith("["):
            current = out.setdefault(line.strip("[]").removeprefix("provenance."), [])
        else:
            current.append(line)
    return {key: "\n".join(each) for key, each in out.items()}


def fit(part: Part, known: Calibration) -> tuple[Calibration, list[str], list[str]]:
    train = part.rows[~part.rows.held_out]
    sample = train.sample(min(len(train), 4000), random_state=0)
    target = sample.us.to_numpy() * 1e-6
    names = list(part.spans)
    first, low, high = (np.log([part.spans[name][i] for name in names]) for i in range(3))

    def calibrated(x: Any) -> Calibration:
        values = dict(zip(names, (float(v) for v in np.exp(x)), strict=True))
        return replace(known, **{part.section: part.build(values)})

    found = least_squares(
        lambda x: np.log(part.seconds(sample, calibrated(x)) / target),
        np.clip(first, low + 1e-9, high - 1e-9),
        loss="soft_l1",
        f_scale=0.1,
        diff_step=1e-3,
        max_nfev=60,
        bounds=(low, high),
    )
    result = calibrated(found.x)
    held = part.rows[part.rows.held_out]
    ratio = part.seconds(held, result) * 1e6 / held.us.to_numpy()
    sigma = float(np.quantile(np.abs(np.log(ratio)), 0.8) / 1.2816)
    result = replace(result, **{part.section: replace(getattr(result, part.section), **{part.sigma: sigma})})
    errors = {"rows": len(held)} | _errors(ratio)
    record = [
        f"[provenance.{part.section}{'.' + part.prefix if part.prefix else ''}]",
        f'source = "{part.source}"',
        f'date = "{datetime.date.today().isoformat()}"',
        f"rows = {len(part.rows)}",
        f"held_out = {{ {', '.join(f'{key} = {_number(value)}' for key, value in errors.items())} }}",
    ]
    return result, _lines(getattr(result, part.section), [*names, part.sigma]), record


def _errors(ratio: Any) -> dict[str, float]:
    error = np.abs(ratio - 1)
    return {
        "mape": float(error.mean()),
        "median": float(np.median(error)),
        "p90": float(np.quantile(error, 0.9)),
        "bias": float(np.median(ratio)),
    }


def prefill_parts(shared: Path, name: str, gpu: Gpu, known: Calibration) -> Part | None:
    return _attention(shared, name, gpu, known, ("context", "encoder"), "prefill", _PREFILL, "log_sigma", "tile_q")


def decode_parts(shared: Path, name: str, gpu: Gpu, known: Calibration) -> Part | None:
    spans = _DECODE
    return _attention(shared, name, gpu, known, ("generation",), "decode", spans, "decode_log_sigma", "decode_tile_q")


_PREFILL: dict[str, Span] = {
    "step_s": (3e-7, 1e-8, 5e-6),
    "block_s": (2e-6, 1e-8, 2e-5),
    "hbm_share": (0.7, 0.2, 1.0),
    "overlap": (0.3, 0.01, 1.0),
    "launch_s": (8e-6, 1e-6, 4e-5),
}
_DECODE: dict[str, Span] = {
    "decode_block_s": (2e-6, 1e-8, 2e-5),
    "decode_step_s": (1e-7, 1e-9, 2e-6),
    "decode_hbm_share": (0.8, 0.3, 1.0),
    "decode_overlap": (0.3, 0.01, 1.0),
    "decode_launch_s": (6e-6, 1e-6, 3e-5),
}


def _attention(
    shared: Path,
    name: str,
    gpu: Gpu,
    known: Calibration,
    phases: tuple[str, ...],
    prefix: str,
    spans: dict[str, Span],
    sigma: str,
    tile: str,
) -> Part | None:
    """One target per shape: the median over frameworks and versions of rows with flag 0. Tiles of 64 and 128 (decode:
    16 and 32) are tried, and the one with the smaller error is kept."""
    keys = ["phase", "batch", "heads", "kv_heads", "head_dim", "window", "seq_q", "seq_kv"]
    table = pd.read_parquet(
        shared / "data" / "measured" / "attention.parquet", columns=["gpu", *keys, "latency_us", "flag"]
    )
    table = table[(table.gpu == name) & (table.flag == 0) & table.phase.isin(phases)]
    if table.empty:
        return None
    rows = table.groupby(keys, observed=True).latency_us.median().rename("us").reset_index()
    # The kernel for head_dim 192 masks a window but reads all keys: fitting it would distort rows without a window.
    rows = rows[(rows.head_dim != 192) | (rows.window == 0)]
    curve = rows.heads * 7919 + rows.kv_heads * 104729 + rows.head_dim * 31 + rows.batch * 977 + rows.window
    rows = rows.assign(held_out=curve % 5 == 0)
    dims = sorted({64, 128} | {d for d, n in rows.head_dim.value_counts().items() if n >= 100 and d % 32 == 0})
    shares = {f"share_{d}": (0.5, 0.03, 1.0) for d in dims} if prefix == "prefill" else {}

    def seconds(part: pd.DataFrame, calibration: Calibration) -> Any:
        out = np.empty(len(part))
        for causal in (True, False):
            where = np.flatnonzero((part.phase.to_numpy() != "encoder") == causal)
            if where.size:
                out[where] = attention_cost(
                    _attention_op(part.iloc[where], causal), gpu, calibration, clock=Clock.BOOST
                ).time_s
        return out

    def build(values: dict[str, float]) -> AttentionCoefficients:
        plain = {key: value for key, value in values.items() if not key.startswith("share_")}
        if shares:
            plain["efficiency"] = tuple((d, values[f"share_{d}"]) for d in dims)  # type: ignore[assignment]
        return replace(known.attention, **{tile: 64 if prefix == "prefill" else 16}, **plain)

    return Part(
        section="attention",
        rows=rows,
        spans=spans | shares,
        build=build,
        seconds=seconds,
        source=f"data/measured/attention.parquet {AIC}, {name} {' '.join(phases)}",
        sigma=sigma,
        prefix=prefix,
    )


def _attention_op(rows: pd.DataFrame, causal: bool) -> Attention:
    a = {key: rows[key].to_numpy(dtype=np.int64) for key in rows.columns if key not in ("phase", "us", "held_out")}
    return Attention(
        name="fit",
        batch=a["batch"],
        num_heads=a["heads"],
        num_kv_heads=a["kv_heads"],
        seq_q=a["seq_q"],
        seq_kv=a["seq_kv"],
        head_dim=a["head_dim"],
        v_head_dim=a["head_dim"],
        window=a["window"],
        causal=causal,
    )


def _lines(coefficients: Any, names: list[str]) -> list[str]:
    plain = [name for name in names if not name.startswith(("share_", "start_"))]
    lines = [f"{name} = {_number(getattr(coefficients, name))}" for name in plain]
    if isinstance(coefficients, AttentionCoefficients) and any(name.startswith("share_") for name in names):
        lines += [f"tile_q = {coefficients.tile_q}", f"efficiency = {_number(coefficients.efficiency)}"]
    if isinstance(coefficients, AttentionCoefficients) and "decode_block_s" in names:
        lines += [f"decode_tile_q = {coefficients.decode_tile_q}"]
    return lines


def _number(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_number(v) for v in value) + "]"
    if isinstance(value, (int, np.integer)):
        return str(value)
    text = f"{value:.4g}"
    return text if any(c in text for c in ".en") else text + ".0"


DEFAULT = [
    "a100_sxm", "h100_sxm", "h200_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300", "rtx_pro_6000_server",
    "arc_pro_b60", "a40",
    "a100_pcie_40gb", "a100_pcie_80gb", "v100_pcie_32gb", "t4", "l4", "p100_pcie_16gb", "p4", "mi100", "mi210",
]  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
