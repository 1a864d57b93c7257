"""Fit the experts' grouped GEMMs to whole fused MoE layers and write them into ``cost/correction/data``.

    python lab/fit_grouped.py ../shared [gpu ...]

Each layer (data/measured/moe_bf16.parquet) is two grouped GEMMs plus permutation and activation, which take the
device's memory-bound costs. One fit is made per kernel family and one to the median over families; a quarter of the
weight shapes (hidden, inter, topk, experts) is held out, with all their rows.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from sartor.cost.correction.calibration import Clock, load_calibration
from sartor.cost.correction.coefficients import GroupedCoefficients
from sartor.cost.correction.gemm_features import SHORT
from sartor.cost.gpu import grouped
from sartor.cost.gpu.grouped import grouped_cost, grouped_terms, tiles_down
from sartor.cost.gpu.memory_bound import memory_bound_cost
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.operators import GroupedGemm, MemoryBound
from sartor.records.rows import kernel_family, work_of

OUT = Path(__file__).resolve().parent.parent / "src" / "sartor" / "cost" / "correction" / "data"
SOURCE = "data/measured/moe_bf16.parquet (ai-dynamo/aiconfigurator 095f58a5, 2026-08-21, Apache-2.0)"
SHAPE = ["hidden_size", "inter_size", "topk", "num_experts"]
KEYS = [*SHAPE, "moe_tp_size", "moe_ep_size", "num_tokens", "distribution", "gated"]
SPANS = {
    "efficiency": (0.7, 0.05, 1.0),
    "half_tile": (16.0, 0.1, 200.0),
    "feed_bytes_per_clock": (60.0, 5.0, 300.0),
    "tile_s": (1e-6, 1e-8, 2e-5),
    "tail": (0.7, 0.01, 1.0),
    "hbm_share": (0.8, 0.2, 1.0),
    "overlap": (0.1, 0.005, 1.0),
    "masked": (0.3, 0.001, 3.0),
    "launch_s": (8e-6, 5e-7, 6e-5),
}
STARTS: tuple[dict[str, float], ...] = (
    {},
    {"feed_bytes_per_clock": 30.0, "half_tile": 2.0, "tile_s": 2e-6, "tail": 0.4},
)
"""Starting points. The median of kernels as different as Triton's and TensorRT-LLM's has two local minima (efficiency
0.32 or 0.54 on devices with the same die), so it is fitted from both; a family is fitted from the first."""
FALLBACKS = ("sglang_cutlass",)
"""Three to six times slower than the two other kernels of the same layers: not part of the median of frameworks."""
TILES = ((64, 64), (128, 128), (256, 128), (256, 256))
"""(tallest, width) of the tiles tried."""
GPUS = (
    "a100_sxm",
    "h100_sxm",
    "h200_sxm",
    "b200_sxm",
    "gb200",
    "b300_sxm",
    "gb300",
    "rtx_pro_6000_server",
    "arc_pro_b60",
)


@dataclass(frozen=True)
class Layers:
    """Layers and everything that does not depend on the coefficients: two GEMMs, seconds of the rest, the target."""

    gpu: Gpu
    parts: list[tuple[Any, list[GroupedGemm], Any]]
    measured_s: Any

    def seconds(self, c: GroupedCoefficients) -> Any:
        return self._timed(lambda op: grouped_terms(op, self.gpu, c)["time_s"])

    def priced(self, family: str) -> Any:
        """Seconds by the package's fit of a family, with its network."""
        known = load_calibration(self.gpu).with_kernels(family)
        return self._timed(lambda op: grouped_cost(op, self.gpu, known, clock=Clock.BOOST).time_s)

    def _timed(self, product_s: Callable[[GroupedGemm], Any]) -> Any:
        out = np.empty(self.measured_s.size)
        for where, products, rest in self.parts:
            out[where] = rest + sum(map(product_s, products))
        return out

    def share(self, c: GroupedCoefficients) -> Any:
        """Share of the two grouped GEMMs in a layer's time."""
        rest = np.empty(self.measured_s.size)
        for where, _, seconds in self.parts:
            rest[where] = seconds
        return 1 - rest / self.seconds(c)

    def shortest(self, c: GroupedCoefficients) -> Any:
        out = np.empty(self.measured_s.size, dtype=bool)
        for where, products, _ in self.parts:
            out[where] = grouped_terms(products[0], self.gpu, c)["time_s"] < SHORT * c.launch_s
        return out


def main(shared: Path, wanted: list[str]) -> None:
    table = moe_table(shared)
    grouped.__dict__["tiles_down"] = _remembered
    for name in wanted or GPUS:
        rows = table[table.gpu == name]
        sections, records = {}, {}
        families = rows.kernel.astype(str).map(kernel_family)
        for family in (*sorted(set(families)), ""):
            every = completed(name, layers_of(rows, families, family))
            target = middle_of(every)
            if len(target) < 100:
                continue
            key = f"grouped_families.{family}" if family else "grouped"
            sections[key], records[key] = fit(name, target, every)
            records[key]["source"] = f"{SOURCE}, {name} {family or 'middle of kernel families'}"
            shown = [[round(v, 3) for v in records[key][part].values()] for part in ("fit", "held_out")]
            print(name, family or "median", *shown, flush=True)
        put(OUT / f"{name}.toml", sections, records, "grouped")


def moe_table(shared: Path) -> pd.DataFrame:
    """Unflagged rows, with whether their experts are gated (as in sartor.records.targets)."""
    table = pd.read_parquet(shared / "data" / "measured" / "moe_bf16.parquet")
    table = table[table.flag == 0].astype({"gpu": str})
    keys = ["gpu", *SHAPE]
    plain = table[table.kernel.astype(str).str.contains("nongated")][keys].drop_duplicates().assign(gated=False)
    table = table.merge(plain, on=keys, how="left")
    table["gated"] = table.gated.isna()
    return table


def layers_of(rows: pd.DataFrame, families: pd.Series, family: str) -> pd.DataFrame:
    """Median latency of every layer of a kernel family; if empty, of every layer and family except the fallbacks."""
    each = rows.assign(family=families).groupby([*KEYS, "family"], observed=True).latency_us.median()
    found = each.rename("us").reset_index()
    return found[found.family == family] if family else found[~found.family.isin(FALLBACKS)]


def completed(name: str, every: pd.DataFrame) -> pd.DataFrame:
    """With the families that ran a layer under another distribution only, at the package's price. On A100 one framework
    ran even loads and three ran uneven ones: their middles would differ by the frameworks, not by the load."""
    layer = [key for key in KEYS if key != "distribution"]
    asked = every[KEYS].drop_duplicates().merge(every[[*layer, "family"]].drop_duplicates(), on=layer)
    missing = asked.merge(every, on=[*KEYS, "family"], how="left").query("us.isna()")
    parts = [rows.assign(us=layers(name, rows).priced(str(each)) * 1e6) for each, rows in missing.groupby("family")]
    return pd.concat([every, *parts], ignore_index=True)


def middle_of(every: pd.DataFrame) -> pd.DataFrame:
    """Every layer once: the median over the families that ran it, each family with equal weight."""
    return every.groupby(KEYS, observed=True).us.median().reset_index()


def _remembered(mean: Any, groups: Any, skew: Any, tiles_m: Any) -> Any:
    """``tiles_down`` with a cache: its arguments are the same at every step of a fit."""
    key = tuple(np.asarray(each).tobytes() for each in (mean, groups, skew, tiles_m))
    if key not in _KNOWN:
        if len(_KNOWN) > 500:
            _KNOWN.clear()
        _KNOWN[key] = tiles_down(mean, groups, skew, tiles_m)
    return _KNOWN[key]


_KNOWN: dict[Any, Any] = {}


def fit(name: str, target: pd.DataFrame, every: pd.DataFrame) -> tuple[dict[str, float], dict[str, Any]]:
    """Coefficients and their record. Held-out error and interval are of weight shapes that the fit has not seen; the
    interval covers 80% of the layers of ``every`` family, because it is unknown which kernel runs."""
    held = held_out(target)
    train = target[~held] if held.any() else target
    one = len(every) == len(target)
    first = _fit(layers(name, train.sample(min(len(train), 1500), random_state=0)), STARTS[:1] if one else STARTS)
    test = layers(name, target[held] if held.any() else target)
    known = layers(name, train)
    ratio = test.seconds(first) / test.measured_s
    doubted = layers(name, every[held_out(every)] if held.any() else every)
    # A layer's interval is narrower than its GEMMs': their errors are half correlated, the rest adds little.
    missed = np.abs(np.log(doubted.seconds(first) / doubted.measured_s)) / (_LAYER_SIGMA * doubted.share(first))
    small = doubted.shortest(first)
    sigmas = {"log_sigma": _sigma(missed[~small], missed), "log_sigma_small": _sigma(missed[small], missed)}
    values: dict[str, float] = {"tile_n": first.tile_n, "tile_m_most": first.tile_m_most, "dragged": first.dragged}
    values |= {key: float(getattr(first, key)) for key in SPANS} | sigmas
    record = {
        "rows": len(target),
        "fit": errors(known.seconds(first) / known.measured_s),
        "held_out": errors(ratio),
    }
    return values, record


def held_out(target: pd.DataFrame) -> Any:
    shapes = target[SHAPE].drop_duplicates().sort_values(SHAPE)
    if len(shapes) < 6:  # too few to hold out whole shapes: hold out every fourth doubling of the tokens
        return (np.log2(target.num_tokens).astype(int) % 4 == 1).to_numpy()
    chosen = shapes.iloc[2::4].assign(held=True)
    return target.merge(chosen, on=SHAPE, how="left").held.notna().to_numpy()


def layers(name: str, rows: pd.DataFrame) -> Layers:
    gpu = load_gpu(name)
    known = load_calibration(gpu)
    parts = []
    for distribution in sorted(set(rows.distribution.astype(str))):
        for gated in (True, False):
            where = np.flatnonzero((rows.distribution.astype(str) == distribution) & (rows.gated == gated))
            if not where.size:
                continue
            chosen = rows.iloc[where]
            sizes = {key: chosen[key].to_numpy() for key in KEYS if key not in ("distribution", "gated")}
            words = {"dtype": "bfloat16", "distribution": distribution, "gated": gated}
            operators = work_of("moe", words, sizes, gpu).operators
            rest = sum(memory_bound_cost(op, gpu, known).time_s for op in operators if isinstance(op, MemoryBound))
            parts.append((where, [op for op in operators if isinstance(op, GroupedGemm)], rest))
    return Layers(gpu, parts, rows.us.to_numpy(dtype=np.float64) * 1e-6)


def _fit(train: Layers, starts: Sequence[Mapping[str, float]]) -> GroupedCoefficients:
    low, high = (np.log([span[i] for span in SPANS.values()]) for i in (1, 2))
    best: Any = None
    tiles = TILES if train.measured_s.size > 300 else TILES[1:2]
    for (tile_m_most, tile_n), dragged, start in product(tiles, (0.0, 1.0), starts):
        base = GroupedCoefficients(tile_m_most=tile_m_most, tile_n=tile_n, dragged=dragged)

        def of(x: Any, base: GroupedCoefficients = base) -> GroupedCoefficients:
            return replace(base, **{key: float(v) for key, v in zip(SPANS, np.exp(x), strict=True)})

        found = least_squares(
            lambda x, of=of: np.log(train.seconds(of(x)) / train.measured_s),
            np.log([start.get(key, span[0]) for key, span in SPANS.items()]),
            loss="soft_l1",
            f_scale=0.1,
            diff_step=1e-3,
            max_nfev=20,
            bounds=(low, high),
        )
        if best is None or found.cost < best[0]:
            best = (found.cost, of(found.x))
    return best[1]  # type: ignore[no-any-return]


_LAYER_SIGMA = 0.87
"""Sigma of the sum of two equal parts relative to each part's, at a correlation of 1/2 (cost/cost.py: RHO)."""


def _sigma(missed: Any, otherwise: Any) -> float:
    return float(np.quantile(missed if missed.size > 30 else otherwise, 0.8) / 1.2816)


def errors(ratio: Any) -> dict[str, float]:
    error = np.abs(ratio - 1)
    return {
        "rows": int(error.size),
        "mape": float(error.mean()),
        "median": float(np.median(error)),
        "p90": float(np.quantile(error, 0.9)),
        "bias": float(np.median(ratio)),
    }


def put(path: Path, sections: dict[str, dict[str, Any]], records: dict[str, dict[str, Any]], prefix: str) -> None:
    """Replace the file's sections whose names start with ``prefix``, and their records."""
    bodies = {key: "\n".join(f"{k} = {_number(v)}" for k, v in values.items()) for key, values in sections.items()}
    put_text(path, bodies, {key: _record(record) for key, record in records.items()}, prefix)


def put_text(path: Path, sections: dict[str, str], records: dict[str, str], prefix: str) -> None:
    """Like ``put`` for sections and records given as text."""
    head, blocks = _blocks(path.read_text(encoding="utf-8")) if path.exists() else (HEAD, {})
    blocks = {k: v for k, v in blocks.items() if not k.removeprefix("provenance.").startswith(prefix)}
    provenance = {k: v for k, v in blocks.items() if k.startswith("provenance.")}
    rest = {k: v for k, v in blocks.items() if k not in provenance} | sections
    provenance |= {f"provenance.{key}": record for key, record in records.items()}
    text = head.strip() + "\n\n" + "\n".join(f"[{k}]\n{v}" for k, v in provenance.items())
    text += "\n\n" + "\n\n".join(f"[{k}]\n{v}" for k, v in rest.items()) + "\n"
    path.write_text(text, encoding="utf-8")


HEAD = """# Seconds end in _s; shares are of the datasheet's rates. Written by lab/fit_*.py.
# Symbols: docs/concepts/attention.md, memory-bound.md, collectives.md, moe.md."""


def _record(record: dict[str, Any]) -> str:
    parts = (
        f"{p} = {{ {', '.join(f'{k} = {_number(v)}' for k, v in record[p].items())} }}" for p in ("fit", "held_out")
    )
    today = datetime.date.today().isoformat()
    return "\n".join([f'source = "{record["source"]}"', f'date = "{today}"', f"rows = {record['rows']}", *parts])


def _blocks(text: str) -> tuple[str, dict[str, str]]:
    """The lines before the first header, and the lines of each header."""
    head: list[str] = []
    blocks: dict[str, list[str]] = {}
    into = head
    for line in text.splitlines():
        if line.startswith("["):
            into = blocks.setdefault(line.strip("[]"), [])
        else:
            into.append(line)
    return "\n".join(head), {key: "\n".join(lines).strip() for key, lines in blocks.items()}


def _number(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(_number(v) for v in value) + "]"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, np.integer)):
        return str(value)
    text = f"{value:.4g}"
    return text if any(c in text for c in ".en") else text + ".0"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
