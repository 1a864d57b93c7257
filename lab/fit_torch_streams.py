"""Fit PyTorch's memory-bound kernels to the records of measured GPUs: ``cost/correction/data/torch_streams.toml``.

Development only (scipy): ``python lab/fit_torch_streams.py [SHARED]``. Rows are those of lab/records; a kernel timed
launch by launch in less than ``host_us`` is the host's time, and longer ones are fitted only where nothing else tells a
constant. On H100 GELU waits for memory, so its arithmetic is A100's (LLMCompass), in cycles. The law of
``sartor.cost.gpu.memory_bound`` is fitted to all GPUs of a generation at once, and without each: those fits go to
lab/torch_streams_held_out.toml, and the errors of the GPU left out give the intervals.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from sartor.bench.records_file import as_timed, read_rows
from sartor.cost.correction.coefficients import TorchStreams
from sartor.cost.cost import Z80
from sartor.cost.gpu.memory_bound import KINDS, RUNS, WIDE, name_of, torch_stream_cost
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.operators import MemoryBound, MemoryBoundKind, Pass
from timed_cases import case_of

LAB = Path(__file__).resolve().parent
OUT = LAB.parent / "src" / "sartor" / "cost" / "correction" / "data" / "torch_streams.toml"
HELD_OUT = LAB / "torch_streams_held_out.toml"
GENERATIONS = {"hopper": ("h100_sxm", "h200_sxm")}
HOST_US, CALL_US = 150.0, 30.0
"""Of a backward pass, and of each kernel of a longer one."""
LLMCOMPASS = "PrincetonUniversity/LLMCompass"

LOSS_BYTES = {"cross_entropy": 2.0, "cross_entropy.backward": 4.0}
"""Least bytes per element of a model's loss, which ran in 16 bits."""

GENERAL = {  # first, least, most
    "hbm_share": (0.9, 0.7, 1.0),
    "launch_s": (1.5e-6, 5e-7, 4e-6),
    "again_from": (0.3, 0.02, 1.0),
    "again_span": (1.3, 0.3, 3.0),
}
PER_ELEMENT = (
    "gelu", "layernorm", "rmsnorm", "softmax", "softmax_wide", "embedding", "optimizer", "rotary",
    "layernorm.backward", "rmsnorm.backward", "softmax.backward", "cross_entropy.backward",
)  # fmt: skip
STARTS = {
    "norms": (3e-6, 1e-7, 2e-5),
    "gathered": (2e-5, 1e-6, 6e-5),
    "embedding.backward": (3e-4, 1e-5, 1e-3),
    "optimizer.start": (2e-6, 1e-7, 1e-5),
}
"""An optimizer counts its steps first; a norm's last block reads its row twice; the loss of 2,048 to 8,192 rows is
gathered by one block; the backward of an embedding sorts its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A kernel that was timed; ``kernel`` is its name in the law."""

    op: MemoryBound
    gpu: Gpu
    kernel: str
    seconds: float
    called: bool = False
    """Timed launch by launch."""


def rows_of(name: str) -> list[Row]:
    """The rows of a GPU; a case timed several times has its median."""
    gpu = load_gpu(name)
    cases: dict[tuple[MemoryBound, bool], list[float]] = {}
    for file in sorted((LAB / "records" / name).glob("*.csv")):
        for row in read_rows(file):
            called = row["timer"] == "events"
            if row["table"] != "memory_bound" or int(row["flag"] or 0):
                continue
            work = case_of(row).work
            assert isinstance(work, MemoryBound)
            op = as_run(work)
            if op and not (called and float(row["latency_us"]) < host_us(op)):
                cases.setdefault((op, called), []).append(float(row["latency_us"]) * 1e-6)
    return [
        Row(op=op, gpu=gpu, kernel=kernel_of(op), seconds=float(np.median(each)), called=called)
        for (op, called), each in cases.items()
    ]


def arithmetic(shared: Path) -> list[Row]:
    """GELU of the two largest sizes on A100, less the time of the smallest, which is the host's."""
    table = pd.read_parquet(shared / "data" / "measured" / "memory_bound.parquet").astype({"gpu": str, "op": str})
    table = table[(table.gpu == "a100_sxm") & (table.op == "gelu") & (table.source.astype(str) == LLMCOMPASS)]
    largest, least = table.nlargest(2, "bytes"), float(table.latency_us.min())
    op = MemoryBound(name="gelu", kind=MemoryBoundKind.ACTIVATION, kernel="gelu", rows=1, cols=1, bytes_moved=4.0)
    return [
        Row(
            op=replace(op, cols=int(each.cols), bytes_moved=float(each.bytes)),
            gpu=load_gpu("a100_sxm"),
            kernel="gelu",
            seconds=(each.latency_us - least) * 1e-6,
        )
        for each in largest.itertuples()
    ]


def host_us(op: MemoryBound) -> float:
    """Shorter ones are the host's time if they are launched one by one."""
    return max(HOST_US, CALL_US * RUNS.get(name_of(op), (1.0, 0.0, 1))[2])


def as_run(work: MemoryBound) -> MemoryBound | None:
    """The operator that ran; None if none did, as for the backward of a sum, or if rows don't say what (routing)."""
    op = as_timed(work)
    assert isinstance(op, MemoryBound)
    if name_of(op) == "other" or (op.kind is MemoryBoundKind.RESIDUAL and op.pass_ is Pass.BACKWARD):
        return None
    each = LOSS_BYTES.get(name_of(op))
    return replace(op, bytes_moved=each * op.rows * op.cols) if each else op


def kernel_of(op: MemoryBound) -> str:
    name = name_of(op)
    return "softmax_wide" if name == "softmax" and op.cols > WIDE else name


class Law:
    """The free numbers of the law, laid out as one vector of logarithms."""

    names = (*GENERAL, *PER_ELEMENT, "softmax_row", *STARTS)

    def __init__(self) -> None:
        spans = [*GENERAL.values(), *((0.5, 1e-2, 10.0) for _ in PER_ELEMENT), (2500.0, 10.0, 2e4), *STARTS.values()]
        self.first, self.low, self.high = (np.log([span[i] for span in spans]) for i in range(3))

    def of(self, x: Any, sigmas: dict[str, float]) -> TorchStreams:
        v = dict(zip(self.names, (float(value) for value in np.exp(x)), strict=True))
        wide = v["softmax_wide"]
        starts = {"layernorm": v["norms"], "rmsnorm": v["norms"], "optimizer": v["optimizer.start"]}
        kinds = dict.fromkeys(("plain", "other", *RUNS, *KINDS.values()), (0.0, 0.0, 0.0))
        kinds |= {name: (v[name], 0.0, starts.get(name, 0.0)) for name in PER_ELEMENT}
        kinds |= {"gelu.backward": kinds["gelu"], "rotary.backward": kinds["rotary"]}
        kinds["softmax_wide"] = (wide, v["softmax_row"], 0.0)
        kinds["cross_entropy"] = (wide / 2, v["softmax_row"], v["gathered"])  # twice the traffic of a softmax
        kinds["loss"] = (0.0, 0.0, v["gathered"])
        kinds["embedding.backward"] = (0.0, 0.0, v["embedding.backward"])
        sigma = {name: sigmas.get(name, sigmas.get("", 0.1)) for name in kinds} | dict.fromkeys(ASSUMED, OTHER_SIGMA)
        general: dict[str, Any] = {name: v[name] for name in GENERAL}
        return TorchStreams(**general, kinds=tuple((name, *each, sigma[name]) for name, each in kinds.items()))


def fit(rows: Sequence[Row], sigmas: dict[str, float] | None = None) -> TorchStreams:
    law, alone = Law(), {row.kernel for row in rows if not row.called}
    own = {*PER_ELEMENT, *STARTS} - alone
    rows = [row for row in rows if not row.called or row.kernel in own]
    found = least_squares(
        lambda x: np.log(ratios(law.of(x, {}), rows)), law.first, loss="soft_l1", f_scale=0.05, x_scale=0.1,
        bounds=(law.low, law.high),
    )  # fmt: skip
    return law.of(found.x, sigmas or {})


def ratios(law: TorchStreams, rows: Sequence[Row]) -> Any:
    """Predicted over measured."""
    return np.array([float(torch_stream_cost(row.op, row.gpu, law, fused=False).time_s) / row.seconds for row in rows])


def sigmas_of(rows: Sequence[Row], ratio: Any) -> dict[str, float]:
    """Standard deviation of each kernel with four rows and more, and of the others together."""
    kernels = np.array([row.kernel for row in rows])
    groups = {name: kernels == name for name in set(kernels) if (kernels == name).sum() >= FEWEST}
    groups[""] = np.ones(len(kernels), dtype=bool)
    return {
        name: max(LEAST_SIGMA, float(f"{np.quantile(np.abs(np.log(ratio[where])), 0.8) / Z80:.3g}"))
        for name, where in groups.items()
    }


FEWEST, LEAST_SIGMA = 4, 0.03
ASSUMED, OTHER_SIGMA = ("other", "embedding.backward"), 0.5
"""Assumed: an expert choice and a sum of permuted rows took 1.5 to 2.7 times as long as their bytes at this rate; an
embedding's backward sorts its tokens, and one shape does not say how that grows."""


def main(shared: Path) -> None:
    cycles = arithmetic(shared)
    text = ["# Written by lab/fit_torch_streams.py; symbols: docs/concepts/memory-bound.md."]
    left_out = ["# Written by lab/fit_torch_streams.py: fitted without the GPU of the name."]
    for generation, names in GENERATIONS.items():
        rows = [row for name in names for row in rows_of(name)]
        judged, off = [], []
        for name in names:
            held, law = (
                [row for row in rows if row.gpu.name == name],
                fit([*cycles, *(r for r in rows if r.gpu.name != name)]),
            )
            judged, off = [*judged, *held], [*off, *(ratio := ratios(law, held))]
            graphs = np.array([not row.called for row in held])
            print(name, "left out", errors(ratio[graphs]), "launched one by one", errors(ratio[~graphs]))
            for row, each in zip(held, ratio, strict=True):
                print(f"   {row.kernel:20} {row.op.rows} x {row.op.cols} {row.seconds * 1e6:.1f} us {each - 1:+.1%}")
            left_out += ["", f"[{name}]", *_lines(law)]
        found = fit([*cycles, *rows], sigmas_of(judged, np.array(off)))
        text += [f"[{generation}]", f"gpus = {list(names)}".replace("'", '"'), f"[{generation}.provenance]"]
        text += ['source = "lab/records: sartor measure, PyTorch 2.11"', f'date = "{datetime.date.today()}"']
        text += [f"fit = {_inline(errors(ratios(found, rows)))}", f"left_out = {_inline(errors(np.array(off)))}"]
        text += [f"[{generation}.law]", *_lines(found)]
        print(generation, errors(ratios(found, rows)), errors(np.array(off)))
    OUT.write_text("\n".join(text) + "\n", encoding="utf-8")
    HELD_OUT.write_text("\n".join(left_out) + "\n", encoding="utf-8")


def errors(ratio: Any) -> dict[str, float]:
    off = np.abs(ratio - 1)
    if not len(off):
        return {}
    return {"rows": len(ratio), "mape": off.mean(), "p90": np.quantile(off, 0.9), "bias": np.median(ratio)}


def _lines(law: TorchStreams) -> list[str]:
    kinds = [f'    ["{name}", {", ".join(f"{value:.4g}" for value in row)}],' for name, *row in law.kinds]
    return [*(f"{name} = {getattr(law, name):.4g}" for name in GENERAL), "kinds = [", *kinds, "]"]


def _inline(values: dict[str, float]) -> str:
    return "{ " + ", ".join(f"{k} = {v if k == 'rows' else f'{v:.4f}'}" for k, v in values.items()) + " }"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else LAB.parent.parent / "shared")
