"""Fit PyTorch's attention to the records of measured GPUs and write ``cost/correction/data/sdpa.toml``.

Development only (scipy): ``python lab/fit_torch_attention.py``. Rows are those of lab/records with PyTorch's own choice
of kernel; the functions of ``sartor.cost`` are fitted to all GPUs of a generation at once. Backward is fitted to rows
timed from a graph where there are some; of those timed launch by launch, which judge it, the ones below ``HOST_US`` are
the host's time. Left out in turn: every head shape (head_dim and query heads per key/value head), for intervals and the
recorded errors, and every GPU, whose coefficients go to lab/sdpa_held_out.toml.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from sartor.bench.records_file import read_rows
from sartor.cost.correction.calibration import BACKWARD, TORCH, UNALIGNED, Calibration, Clock, load_calibration
from sartor.cost.correction.coefficients import AttentionCoefficients
from sartor.cost.gpu.attention import attention_cost
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.operators import Attention, Pass

LAB = Path(__file__).resolve().parent
OUT = LAB.parent / "src" / "sartor" / "cost" / "correction" / "data" / "sdpa.toml"
HELD_OUT = LAB / "sdpa_held_out.toml"
GENERATIONS = {"hopper": ("h100_sxm", "h200_sxm")}
HOST_US = 150.0
Span = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Passes that share coefficients: the words of a row, the spans to fit, what is fixed, and tiles to choose from."""

    passes: tuple[str, ...]
    spans: dict[str, Span]
    tiles: tuple[int, ...] = (0,)
    sigma: str = "log_sigma"


COMMON: dict[str, Span] = {
    "block_s": (2e-6, 1e-9, 3e-5),
    "hbm_share": (0.7, 0.3, 1.0),
    "overlap": (0.2, 0.01, 1.0),
    "launch_s": (5e-6, 1e-6, 3e-5),
}
FORWARD = Part(
    passes=("causal", "full"),
    spans={"share_64": (0.5, 0.1, 1.0), "share_128": (0.7, 0.1, 1.0)} | COMMON,
    tiles=(128, 256),
)
"""One share for all heads wider than 64: at 64 and below the exponentials take longer than the products."""
DECODE = Part(
    passes=("decode",),
    spans={
        "step_s": (1e-7, 1e-9, 1e-6),
        "decode_hbm_share": (0.9, 0.5, 1.0),
        "decode_overlap": (0.2, 0.01, 1.0),
        "decode_launch_s": (3e-6, 1e-6, 2e-5),
    },
    sigma="decode_log_sigma",
)
BACKWARDS = Part(
    passes=("backward causal", "backward full"),
    spans={f"share_{d}": (0.5, 0.1, 1.0) for d in (64, 128, 192)} | COMMON,
    tiles=(64, 128),
)
"""One share for all heads wider than 128, whose gradients do not fit in registers at once."""
FLASH_2 = {"": (((64, 0.28), (128, 0.35)), 128), BACKWARD: (((64, 0.24), (128, 0.30)), 64)}
"""FlashAttention-2 on Hopper, not fitted: shares of peak by head width, and rows of a tile. 0.35 forward is from the
abstract of arXiv 2407.08608 (FlashAttention-3, 2024-07). Backward reaches 63% of A100's peak for forward's 73% (arXiv
2307.08691, 2023-07). Heads of 64 reach as much less as in A100's fit (0.50 for 0.62)."""
PLAIN = AttentionCoefficients(head_step=64, step_s=0.0, decode_block_s=0.0, decode_step_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Rows of one GPU and pass, as one operator of arrays."""

    gpu: Gpu
    known: Calibration
    kind: str
    op: Attention
    seconds: Any
    shape: Any
    """Of heads: ``128 x 4``, head_dim and query heads per key/value head."""

    def only(self, where: Any) -> Rows:
        sizes = {name: getattr(self.op, name)[where] for name in SIZES}
        return replace(self, op=replace(self.op, **sizes), seconds=self.seconds[where], shape=self.shape[where])

    def predicted(self, c: AttentionCoefficients) -> tuple[Any, Any]:
        """Seconds and standard deviations."""
        families = {TORCH: c, f"{TORCH}{BACKWARD}": c}
        known = replace(self.known, attention_families=families).with_kernels(TORCH)
        cost = attention_cost(self.op, self.gpu, known, clock=Clock.BOOST)
        return cost.time_s, cost.log_sigma


SIZES = ("batch", "num_heads", "num_kv_heads", "seq_q", "seq_kv", "head_dim", "v_head_dim")


def rows_of(name: str) -> list[Rows]:
    """The rows of a GPU by kind; a case timed several times has its median."""
    gpu, cases = load_gpu(name), {}
    for file in sorted((LAB / "records" / name).glob("*.csv")):
        for row in read_rows(file):
            called = row.get("timer") == "events" and float(row["latency_us"]) < HOST_US
            if row["table"] != "attention" or row["kernel"] or int(row["flag"] or 0) or called:
                continue
            kind = "decode" if row["seq_q"] == "1" else "causal" if row["causal"] == "True" else "full"
            kind = f"backward {kind}" if row["pass"] == "backward" else kind
            b, h, kv, q, s, d = (int(row[x]) for x in ("batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim"))
            cases.setdefault((kind, (b, h, kv, q, s, d, d)), []).append((row["timer"], float(row["latency_us"])))
    found = []
    for kind in dict.fromkeys(kind for kind, _ in cases):
        sizes = [size for each, size in cases if each == kind]
        times = [np.median([us for _, us in cases[kind, size]]) for size in sizes]
        columns = dict(zip(SIZES, np.array(sizes).T, strict=True))
        pass_ = Pass.BACKWARD if kind.startswith("backward") else Pass.FORWARD
        op = Attention(name="fit", causal=not kind.endswith("full"), pass_=pass_, **columns)
        shape = np.array([f"{size[5]} x {size[1] // size[2]}" for size in sizes])
        known = load_calibration(gpu)
        found.append(Rows(gpu=gpu, known=known, kind=kind, op=op, seconds=np.array(times) * 1e-6, shape=shape))
    return found


def from_graphs(name: str) -> bool:
    """Whether the GPU's backward rows were timed from graphs."""
    rows = [row for file in (LAB / "records" / name).glob("*.csv") for row in read_rows(file)]
    return any(row["table"] == "attention" and row["pass"] == "backward" and row["timer"] == "graph" for row in rows)


def fit(part: Part, rows: Sequence[Rows], start: AttentionCoefficients) -> AttentionCoefficients:
    """The coefficients of a part, with the tile that fits best."""
    names, target = list(part.spans), np.concatenate([each.seconds for each in rows])
    first, low, high = (np.log([part.spans[name][i] for name in names]) for i in range(3))

    def build(x: Any, tile: int) -> AttentionCoefficients:
        values = dict(zip(names, (float(f"{v:.4g}") for v in np.exp(x)), strict=True)) if x is not None else {}
        shares = tuple((int(k.removeprefix("share_")), v) for k, v in values.items() if k.startswith("share_"))
        plain: dict[str, Any] = {k: v for k, v in values.items() if not k.startswith("share_")}
        plain |= {"efficiency": shares} if shares else {}
        plain |= {"tile_q": tile} if tile else {}
        return replace(start, **plain)

    def off(x: Any, tile: int) -> Any:
        c = build(x, tile)
        return np.log(np.concatenate([each.predicted(c)[0] for each in rows]) / target)

    best = []
    for tile in part.tiles:
        found = least_squares(
            off, first, args=(tile,), loss="soft_l1", f_scale=0.05, diff_step=1e-3, max_nfev=40, bounds=(low, high)
        )
        best.append((found.cost, tile, found.x))
    _, tile, x = min(best, key=lambda each: each[0])
    return build(x, tile)


def errors(c: AttentionCoefficients, rows: Sequence[Rows]) -> dict[str, float]:
    return judged(np.concatenate([each.predicted(c)[0] / each.seconds for each in rows]))


def judged(ratio: Any) -> dict[str, float]:
    off = np.abs(ratio - 1)
    return {"rows": len(ratio), "mape": off.mean(), "p90": np.quantile(off, 0.9), "bias": np.median(ratio)}


def without_each_shape(part: Part, rows: Sequence[Rows], start: AttentionCoefficients) -> Any:
    """Predicted over measured of every row, by fits that did not see its head shape."""
    ratios = [np.empty(len(each.seconds)) for each in rows]
    for shape in sorted({shape for each in rows for shape in each.shape}):
        seen = [each.only(each.shape != shape) for each in rows]
        c = fit(part, [each for each in seen if len(each.seconds)], start)
        for each, ratio in zip(rows, ratios, strict=True):
            if (held := each.shape == shape).any():
                ratio[held] = each.only(held).predicted(c)[0] / each.seconds[held]
    return np.concatenate(ratios)


def kernels(rows: Sequence[Rows], names: Sequence[str], *, judge: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Coefficients of forward with decode, and of backward; and with ``judge`` the errors of left-out head shapes."""
    graphs = [name for name in names if from_graphs(name)] or list(names)
    found, records, c = {}, {}, PLAIN
    for part, key in ((FORWARD, TORCH), (DECODE, TORCH), (BACKWARDS, f"{TORCH}{BACKWARD}")):
        of_part = [each for each in rows if each.kind in part.passes and each.gpu.name in names]
        if part is BACKWARDS:
            of_part = [each for each in of_part if each.gpu.name in graphs]
            c = replace(PLAIN, partial_gradients=True, backward=1.0, backward_fitted=True)
        start, c = c, fit(part, of_part, c)
        if judge:
            ratio = without_each_shape(part, of_part, start)
            rest = [each for each in rows if each.kind in part.passes and not any(each is one for one in of_part)]
            ratio = np.concatenate([ratio, *(each.predicted(c)[0] / each.seconds for each in rest)])
            c = replace(c, **{part.sigma: float(f"{np.quantile(np.abs(np.log(ratio)), 0.8) / 1.2816:.4g}")})
            records[part.passes[0].split()[0]] = {"fit": errors(c, of_part), "left_out": judged(ratio)}
        found[key] = c
    for ending, (share, tile) in FLASH_2.items():
        own = replace(found[f"{TORCH}{ending}"], efficiency=share, tile_q=tile, head_step=32, backward_fitted=False)
        found[f"{TORCH}{UNALIGNED}{ending}"] = own
    return found, records


def main() -> None:
    text = ["# Written by lab/fit_torch_attention.py; symbols: docs/concepts/attention.md."]
    left_out = ["# Written by lab/fit_torch_attention.py: fitted without the GPU of the name."]
    for generation, names in GENERATIONS.items():
        rows = [each for name in names for each in rows_of(name)]
        found, records = kernels(rows, names, judge=True)
        text += [f"[{generation}]", f"gpus = {list(names)}".replace("'", '"')]
        text += [
            f"[{generation}.provenance]",
            'source = "lab/records: sartor measure, PyTorch 2.11 (cuDNN 9.19), its own choice of kernel"',
            f'date = "{datetime.date.today().isoformat()}"',
        ]
        for part, record in records.items():
            text += [f"{part}_{key} = {_inline(each)}" for key, each in record.items()]
            print(part, record)
        for key, c in found.items():
            text += ["", f'[{generation}.kernels."{key}"]', *_lines(c)]
        for name in names:
            others = [each for each in names if each != name]
            without, _ = kernels(rows, others, judge=False)
            left_out += [line for key, c in without.items() for line in ("", f'[{name}."{key}"]', *_lines(c))]
            for each in (each for each in rows if each.gpu.name == name):
                key = f"{TORCH}{BACKWARD}" if each.kind.startswith("backward") else TORCH
                print(name, "left out", each.kind, errors(without[key], [each]), flush=True)
    OUT.write_text("\n".join(text) + "\n", encoding="utf-8")
    HELD_OUT.write_text("\n".join(left_out) + "\n", encoding="utf-8")


def _lines(c: AttentionCoefficients) -> list[str]:
    plain = AttentionCoefficients()
    names = [name for name in plain.__dataclass_fields__ if getattr(c, name) != getattr(plain, name)]
    return [f"{name} = {_value(getattr(c, name))}" for name in names]


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_value(each) for each in value)}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _inline(values: dict[str, float]) -> str:
    return "{ " + ", ".join(f"{k} = {v if k == 'rows' else f'{v:.4f}'}" for k, v in values.items()) + " }"


if __name__ == "__main__":
    main()
