"""Fit one law of memory-bound kernels to all measured NVIDIA GPUs (``cost/correction/data/streams.toml``).

    python lab/fit_stream_law.py [SHARED]      (default: ../shared; about two minutes on one core)

A GPU nobody measured takes it (cost/gpu/memory_bound.py has the formula). The fit is repeated without each GPU and
without each generation; those fits go to lab/streams_held_out.toml, which lab/kin_docs.py judges. A kernel's standard
deviation is what it needed on the GPUs that were left out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from sartor.cost.correction.coefficients import StreamLaw
from sartor.cost.cost import Z80
from sartor.cost.gpu.memory_bound import WIDE_SOFTMAX, law_cost
from sartor.hardware.catalog import load_gpu
from sartor.operators import DType, MemoryBound
from sartor.records.rows import MEMORY_BOUND

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "src" / "sartor" / "cost" / "correction" / "data" / "streams.toml"
HELD_OUT = ROOT / "lab" / "streams_held_out.toml"
ALONE, HOST = "microsoft/vidur", "sitar-lab/NeuSight"
"""Whose kernels were timed alone, and whose by a host that waits for each."""
LABELS = {"a100_80gb_unspecified": "a100_sxm"}
MOST = {ALONE: 400, HOST: 250}
"""Largest sample of sizes per GPU and kernel."""
BIG_ONLY_S = 4e-5
"""A GPU whose fastest row takes longer was never seen waiting for its host."""
KINDS = {
    ALONE: {"norm": "rmsnorm", "activation": "silu_and_mul", "rotary": "rope", "residual": "add"},
    HOST: {"norm": "layernorm", "activation": "relu", "residual": "add"},
}
"""The commonest kernel of a kind, for operators that name no kernel."""
GENERAL = {  # name: (first, least, most)
    ALONE: {"hbm_share": (0.9, 0.5, 1.0), "l2_part": (0.4, 0.2, 1.5), "l2_bytes_per_cycle": (16.0, 10.0, 64.0)},
}
GENERAL[HOST] = GENERAL[ALONE] | {
    "gddr_share": (0.77, 0.5, 1.0),
    "again_from": (0.13, 0.02, 1.0),
    "again_span": (1.3, 0.3, 2.5),
    "hidden_s": (8e-6, 1e-7, 1.2e-5),
}
PER_KERNEL = {
    ALONE: {"element": (0.1, 2e-4, 6.0), "start": (3e-6, 1e-7, 2e-5), "column": (0.5, 1e-3, 50.0)},
    HOST: {"element": (0.1, 4e-4, 12.0), "start": (3e-5, 1e-5, 1e-4)},
}
Laws = dict[str, StreamLaw]
"""The law of kernels timed alone and of those timed from the host, by source."""


def measured(shared: Path) -> pd.DataFrame:
    """Median times by GPU, kernel and size: kernels timed alone, and fp32 ones timed from the host."""
    table = pd.read_parquet(shared / "data" / "measured" / "memory_bound.parquet")
    table = table.astype({"gpu": str, "op": str, "source": str, "dtype": str})
    table = table[(table.flag == 0) & table.source.isin([ALONE, HOST])].assign(gpu=lambda t: t.gpu.replace(LABELS))
    table = table[[load_gpu(name).vendor == "NVIDIA" for name in table.gpu]]
    keys = ["source", "gpu", "op", "dtype", "rows", "cols", "bytes"]
    return table.groupby(keys).latency_us.median().mul(1e-6).rename("s").reset_index()


def sampled(rows: pd.DataFrame) -> pd.DataFrame:
    """At most ``MOST`` sizes of each kernel on each GPU."""
    groups = rows.groupby(["source", "gpu", "op"])
    return pd.concat([part.sample(min(len(part), MOST[key[0]]), random_state=0) for key, part in groups])


def solved(rows: pd.DataFrame) -> Laws:
    """The laws that fit these rows best. No second memory but GDDR's was timed alone: its share of HBM's is the host
    kernels'."""
    host = Fit(rows, HOST, 1.0).solve()
    return {HOST: host, ALONE: Fit(rows, ALONE, host.gddr_share / host.hbm_share).solve()}


class Fit:
    """The free numbers of one law, laid out as one vector of logarithms."""

    def __init__(self, rows: pd.DataFrame, source: str, gddr: float) -> None:
        self.source, self.gddr = source, gddr
        rows = rows[rows.source == source]
        self.groups = [(gpu, op, part) for (gpu, op), part in rows.groupby(["gpu", "op"])]
        self.kernels = sorted({op for _, op, _ in self.groups} | ({WIDE_SOFTMAX} if source == HOST else set()))
        self.hosts = sorted({gpu for gpu, _, _ in self.groups}) if source == HOST else []
        self.waits = [gpu for gpu in self.hosts if rows[rows.gpu == gpu].s.min() < BIG_ONLY_S]
        spans = [*GENERAL[source].values()]
        spans += [span for span in PER_KERNEL[source].values() for _ in self.kernels]
        spans += [(1.0, 0.4, 3.0)] * len(self.hosts)
        self.first, self.low, self.high = (np.log([span[i] for span in spans]) for i in range(3))
        self.sizes = [(gpu, load_gpu(gpu), operator(op, part), part.s.to_numpy()) for gpu, op, part in self.groups]

    def split(self, x: Any) -> tuple[StreamLaw, dict[str, float]]:
        """The law, with host times of the middle host, and each GPU's host times over those."""
        v = [float(each) for each in np.exp(x)]
        general = dict(zip(GENERAL[self.source], v, strict=False))
        general.setdefault("gddr_share", general["hbm_share"] * self.gddr)
        at, count = len(GENERAL[self.source]), len(self.kernels)
        per = [v[at + i * count : at + (i + 1) * count] for i in range(len(PER_KERNEL[self.source]))]
        hosts = dict(zip(self.hosts, v[at + len(per) * count :], strict=True))
        middle = float(np.median([hosts[gpu] for gpu in self.waits])) if self.waits else 1.0
        columns = per[2] if len(per) > 2 else [0.0] * count
        kinds = [(op, per[0][i], per[1][i] * middle, columns[i], 0.25) for i, op in enumerate(self.kernels)]
        law = StreamLaw(kinds=_with_kinds(kinds, KINDS[self.source]), **general)
        return law, {gpu: each / middle for gpu, each in hosts.items()}

    def errors(self, x: Any) -> Any:
        """ln(predicted / measured), each kernel on each GPU with the same weight."""
        law, hosts = self.split(x)
        out = []
        for gpu, device, op, seconds in self.sizes:
            found = law_cost(op, device, law, eager=self.source == HOST, host=hosts.get(gpu, 1.0)).time_s
            out.append(np.log(found / seconds) * 10 / np.sqrt(seconds.size))
        return np.concatenate(out)

    def solve(self) -> StreamLaw:
        """The law that fits best."""
        bounds = (self.low, self.high)
        found = least_squares(self.errors, self.first, loss="soft_l1", f_scale=0.1, bounds=bounds, max_nfev=40)
        return self.split(found.x)[0]


def operator(op: str, part: pd.DataFrame) -> MemoryBound:
    """All sizes of one kernel as one operator."""
    rows, cols, moved = (part[name].to_numpy(dtype=np.float64) for name in ("rows", "cols", "bytes"))
    dtype = DType.FP32 if part.dtype.iloc[0] == "float32" else DType.FP16
    return MemoryBound(
        name="fit", kind=MEMORY_BOUND[op], rows=rows, cols=cols, bytes_moved=moved, kernel=op, dtype=dtype
    )


def _with_kinds(rows: Sequence[Any], kinds: Mapping[str, str]) -> tuple[Any, ...]:
    known = {row[0]: row for row in rows}
    return (*rows, *((kind, *known[op][1:]) for kind, op in kinds.items() if op in known))


Errors = dict[tuple[str, str, str], Any]
"""ln(predicted / measured) by source, GPU and kernel."""


def judged(laws: Laws, rows: pd.DataFrame) -> Errors:
    """The errors of these laws on these rows."""
    out: Errors = {}
    for (source, gpu, op), part in rows.groupby(["source", "gpu", "op"]):
        found = law_cost(operator(op, part), load_gpu(gpu), laws[source], eager=source == HOST).time_s
        out[source, gpu, op] = np.log(found / part.s.to_numpy())
    return out


def with_sigmas(laws: Laws, errors: Errors) -> Laws:
    """The laws with the standard deviations that GPUs left out needed, GPUs weighing alike."""

    def needed(source: str, name: str) -> float:
        op = KINDS[source].get(name, name)
        found = [np.abs(each) for key, each in errors.items() if (key[0], key[2]) == (source, op)]
        draws = [np.quantile(each, np.linspace(0.0025, 0.9975, 200)) for each in found]
        return round(max(float(np.quantile(np.concatenate(draws), 0.8)) / Z80, 0.02), 4) if draws else 0.25

    return {
        source: replace(law, kinds=tuple((*row[:4], needed(source, row[0])) for row in law.kinds))
        for source, law in laws.items()
    }


def main(shared: Path) -> None:
    few = sampled(measured(shared))
    gpus = sorted(set(few.gpu))
    without: dict[str, Laws] = {}
    errors: Errors = {}
    for gpu in gpus:
        without[gpu] = solved(few[few.gpu != gpu])
        errors |= judged(without[gpu], few[few.gpu == gpu])
        print(gpu, "left out", _mean(errors, gpu), flush=True)
    held = {gpu: _entry(laws, _but(errors, {gpu}), few) for gpu, laws in without.items()}
    generations = {gpu: load_gpu(gpu).generation for gpu in gpus}
    for generation in sorted(set(generations.values())):
        inside = {gpu for gpu in gpus if generations[gpu] == generation}
        laws = solved(few[~few.gpu.isin(inside)]) if len(inside) > 1 else without[min(inside)]
        held[generation] = _entry(laws, _but(errors, inside), few)
    OUT.write_text(_toml({"NVIDIA": _entry(solved(few), errors, few)}), encoding="utf-8")
    HELD_OUT.write_text(_toml(held), encoding="utf-8")


def _entry(laws: Laws, errors: Errors, rows: pd.DataFrame) -> dict[str, Any]:
    """Both laws with what GPUs left out needed, and where they come from."""
    laws, gpus = with_sigmas(laws, errors), sorted({gpu for _, gpu, _ in errors})
    record = {
        "source": f"data/measured/memory_bound.parquet ({ALONE}, {HOST})",
        "rows": int(rows.gpu.isin(gpus).sum()),
        "date": DATE,
        "left_out": {gpu: _mean(errors, gpu) for gpu in gpus},
    }
    return {"alone": _fields(laws[ALONE]), "called": _fields(laws[HOST]), "provenance": record}


def _fields(law: StreamLaw) -> dict[str, Any]:
    return {field.name: getattr(law, field.name) for field in fields(law)}


DATE = "2026-11-26"
HEAD = """# Written by lab/fit_stream_law.py; symbols: docs/concepts/memory-bound.md. left_out: mean |error| of each
# GPU by the law fitted without it, kernels weighing alike."""


def _but(errors: Errors, gpus: set[str]) -> Errors:
    return {key: each for key, each in errors.items() if key[1] not in gpus}


def _mean(errors: Errors, gpu: str) -> float:
    return round(float(np.mean([np.abs(np.expm1(each)).mean() for key, each in errors.items() if key[1] == gpu])), 3)


def _toml(entries: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [HEAD]
    for name, entry in entries.items():
        for part, values in entry.items():
            lines += ["", f"[{name}.{part}]", *(f"{key} = {_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value) if isinstance(value, int) else f"{value:.4g}"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT.parent / "shared")
