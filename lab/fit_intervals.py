"""Write ``cost/correction/data/lent.toml``: how wide the intervals of a borrowed calibration must be to cover 80%.

``python lab/fit_intervals.py [DATA] [family ...]`` (default: ../shared/data, all). Every measured device borrows the
calibration of another as if it had never been measured (lab/kin_docs.py). For each section and distance (same die,
same generation, another generation, joint fit) one number is chosen so that 80% of all devices' measurements are
inside: a factor on the lender's own standard deviation or, for the sections in ``LEAST``, a minimum standard deviation.
Generations have equal weight. The fit is repeated without each device (for another generation: without its whole
generation); the coverage of that device's measurements is recorded, and docs/kin.md uses these intervals
(lab/lent_held_out.toml).
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import kin_docs
from sartor.cost.correction import coefficients as calibration_tables
from sartor.cost.correction.carrying import DIE
from sartor.cost.correction.coefficients import table_of
from sartor.cost.cost import Z80
from sartor.hardware.catalog import load_gpu
from sartor.records.tables import read_tables
from sartor.records.targets import Targets, targets_of
from sartor.validate.predictions import predict

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "src" / "sartor" / "cost" / "correction" / "data" / "lent.toml"
HELD_OUT = ROOT / "lab" / "lent_held_out.toml"
MOST = 1500
"""Largest sample of targets per device and dtype (or phase), drawn with a fixed seed."""
FEWEST = 30
SHARE = 0.8
ASKED = (0.7, 0.725, 0.75, 0.775, 0.8, 0.825, 0.85, 0.875, 0.9)
LEAST = ("memory_bound", "collective")
"""Sections with standard deviations of single kernels on one device: borrowing does not widen them in proportion."""
WORDS = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "sq": "int8"}

OTHER_DIE = {"b200_sxm": "gb300", "gb200": "b300_sxm", "b300_sxm": "gb200", "gb300": "b200_sxm"}
"""A device of the same generation with another die, in addition to those of kin_docs."""
LINKS = {"b200_sxm": "b300_sxm", "b300_sxm": "b200_sxm", "gb200": "gb300", "gb300": "gb200"}
"""The device with the same links and node size: its collectives are most alike (cost/correction/relatives.py)."""


@dataclass(frozen=True, kw_only=True)
class Lent:
    """One device's rows of one section, predicted with a borrowed calibration."""

    gpu: str
    error: Any
    """|ln(measured / predicted)|."""
    sigma: Any
    """The lender's own standard deviation."""


Sections = dict[tuple[str, str], list[Lent]]
"""(distance, section) -> predictions of every borrower."""


def main(data: Path, families: Sequence[str]) -> None:
    sections: Sections = {}
    reading = read_tables(data / "measured", ())
    for name in families or kin_docs.FAMILIES:
        targets = targets_of([table for table in reading.tables if table.kind.name == name], [])
        for key, lent in borrowed(name, targets):
            sections.setdefault(key, []).append(lent)
        print(name, flush=True, file=sys.stderr)
    table, held = ((_read(path) if families else {}) for path in (OUT, HELD_OUT))
    for (near, section), lents in sorted(sections.items()):
        entry, without = judged(near, section, lents)
        table.setdefault(near, {})[section] = entry
        for gpu, each in without.items():
            held.setdefault(gpu, {}).setdefault(near, {})[section] = each
        print(near, section, entry, flush=True)
    OUT.write_text(_toml(table, HEAD), encoding="utf-8")
    HELD_OUT.write_text(_toml({f"{g}.{n}": e for g, t in sorted(held.items()) for n, e in t.items()}, HEAD))


HEAD = "# Written by lab/fit_intervals.py; docs/concepts/intervals.md says what the numbers are and how judged."


# ------------------------------------------------------------------------------------------- what borrowers predict


def borrowed(family: str, targets: Targets) -> Iterator[tuple[tuple[str, str], Lent]]:
    """Every device's rows predicted with every lender, by distance and by the section that set their interval."""
    column = targets.coded["gpu"]
    names = np.array([kin_docs._known(str(value)) for value in column.values])[column.codes]
    second = {"gemm": "dtype", "attention": "phase"}.get(family)
    words = _words(targets, second) if second else np.full(len(targets), "", dtype=object)
    for gpu in sorted(set(names) - {""}):
        if gpu not in kin_docs.ELSEWHERE:
            continue
        rows = np.concatenate([_drawn((names == gpu) & (words == word)) for word in sorted(set(words[names == gpu]))])
        few, kinds = kin_docs.taken(targets, rows), words[rows]
        for lender, widen in pairs(family, gpu):
            with borrowing(gpu, lender, widen):
                predicted = predict(few)
            owners = np.array([str(v) for v in predicted.calibration.values])[predicted.calibration.codes]
            fits = np.isfinite(predicted.time_s) & (owners != "generation")
            error = np.abs(np.log(few.measured_s / predicted.time_s))
            for word in sorted(set(kinds[fits])):
                part = fits & (kinds == word)
                joint = bool((owners[part] == "joint").any()) and (
                    family == "memory_bound" or WORDS.get(word, word) in joint_dtypes()
                )
                near = "joint" if joint else "die" if widen <= DIE else "generation" if widen < 2.5 else "other"
                section = section_of(family, str(word), near)
                sigma = predicted.log_sigma / (1.0 if joint or section.startswith("residual.") else widen)
                if part.sum() >= FEWEST:
                    yield (
                        (near, section_of(family, str(word), near)),
                        Lent(gpu=gpu, error=error[part], sigma=sigma[part]),
                    )


def pairs(family: str, gpu: str) -> list[tuple[str, float]]:
    """(lender, widening factor of its distance) pairs of a device; lenders are of the same vendor."""
    far = kin_docs.ELSEWHERE[gpu]
    found = [(far, 3.0)] if load_gpu(far).vendor == load_gpu(gpu).vendor else []
    if family == "collectives":
        near = {LINKS.get(gpu): 1.3, kin_docs.NEAREST.get(gpu, ("",))[0] if gpu in LINKS else None: 1.8}
        return found + [(lender, widen) for lender, widen in near.items() if lender]
    lender = kin_docs.NEAREST.get(gpu)
    if lender and (family != "moe" or "grouped" in (table_of(f"{lender[0]}.toml") or {})):
        found.append(lender)
    return found + ([(OTHER_DIE[gpu], 1.8)] if gpu in OTHER_DIE else [])


def section_of(family: str, word: str, near: str) -> str:
    """The key in ``lent.toml``: the network's for the same die, else the calibration section."""
    word = WORDS.get(word, word)
    if near == "die" and _networks(family):
        return f"residual.{word or 'grouped'}"
    if family == "gemm":
        return f"gemm.{word}"
    if family == "attention":
        return "attention.decode" if word == "generation" else "attention"
    return {"moe": "grouped", "collectives": "collective"}.get(family, family)


@cache
def joint_dtypes() -> frozenset[str]:
    """Types that the joint fit was made for (int8 with fp8, which prices it); others that use it count as borrowed from
    another generation."""
    return frozenset(table_of("joint.toml") or ()) | {"int8"}


def _networks(family: str) -> bool:
    return family in ("attention", "moe", "gemm")


@contextmanager
def borrowing(gpu: str, lender: str, widen: float) -> Iterator[None]:
    """``kin_docs.unmeasured`` with the lender's own interval times ``widen``: without an earlier ``lent.toml`` and
    without floors (except those of host-bound GEMMs), and with borrowed links as well."""
    read = calibration_tables._read

    def plain(name: str) -> Any:
        table = read(name)
        if name == "lent.toml":
            return {}
        if name != "kin.toml" or not table:
            return table
        floors = {
            n: {k: v for k, v in t.items() if k.endswith((".sub_block", ".half_block"))}
            for n, t in table["floors"].items()
        }
        return {**table, "floors": floors}

    calibration_tables._read = plain  # type: ignore[assignment]
    kin_docs.forget_calibrations()
    try:
        with kin_docs.unmeasured(gpu, lender, widen, links=lender):
            yield
    finally:
        calibration_tables._read = read
        kin_docs.forget_calibrations()


def _words(targets: Targets, name: str) -> Any:
    column = targets.coded[name]
    return np.array([str(value) for value in column.values], dtype=object)[column.codes]


def _drawn(where: Any) -> Any:
    rows = np.flatnonzero(where)
    if rows.size > MOST:
        rows = np.sort(np.random.default_rng(0).choice(rows, MOST, replace=False))
    return rows


# ------------------------------------------------------------------------------------------- what they need


def judged(near: str, section: str, lents: Sequence[Lent]) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """The entry fitted on all devices, and per device the one fitted without it (without its generation if lenders are
    of another). A fit on few devices covers too little of unseen ones, so the share to cover when fitting is chosen
    such that held-out devices reach ``SHARE``."""
    shares = [asked for asked in ASKED if asked >= SHARE or not section.startswith("residual.")]
    tried = [_judged(near, section, lents, asked) for asked in shares]
    return min(tried, key=lambda one: abs(one[0].get("inside", SHARE) - SHARE) + 0.01 * abs(one[0]["asked"] - SHARE))


def _judged(
    near: str, section: str, lents: Sequence[Lent], asked: float
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    inside, without = [], {}
    for each in sorted({lent.gpu for lent in lents}):
        apart = {each} if near in ("die", "generation") else _peers(each)
        others = [lent for lent in lents if lent.gpu not in apart]
        without[each] = needed(near, section, others or lents, asked if others else SHARE)
        if others:
            inside.append(float(np.mean([_inside(lent, without[each]) for lent in lents if lent.gpu == each])))
    share = asked if inside else SHARE
    entry: dict[str, Any] = dict(needed(near, section, lents, share))
    entry |= {"devices": len({lent.gpu for lent in lents}), "asked": share}
    return entry | ({"inside": round(float(np.mean(inside)), 3)} if inside else {}), without


def needed(near: str, section: str, lents: Sequence[Lent], share: float) -> dict[str, float]:
    """The factor or minimum standard deviation that covers ``share`` of the rows, generations weighted equally."""
    least = section in LEAST and near != "joint"
    if least:
        scores = [np.where(x.error <= Z80 * x.sigma, 0.0, x.error / Z80) for x in lents]
    else:
        scores = [x.error / (Z80 * x.sigma) for x in lents]
    generations = [load_gpu(x.gpu).generation for x in lents]
    weights = [
        np.full(len(score), 1 / (len(score) * generations.count(generation)))
        for score, generation in zip(scores, generations, strict=True)
    ]
    found = _quantile(np.concatenate(scores), np.concatenate(weights), share)
    if least:
        return {"times": 1.0, "least": round(found, 3)}
    return {"times": round(_for_unseen(section, found), 3)}


def _for_unseen(section: str, times: float) -> float:
    """The factor for weights that may be unseen. A lender's network saw these weights on its own device, but its
    ``kin_log_sigma`` is for unseen ones (lab/fit_residual.py): a factor below 1 is moved half-way (in ln) towards 1."""
    return float(np.sqrt(times)) if section.startswith("residual.") and times < 1 else times


def _inside(lent: Lent, entry: Mapping[str, float]) -> float:
    width = np.maximum(lent.sigma * entry["times"], entry.get("least", 0.0))
    return float((lent.error <= Z80 * width).mean())


def _peers(gpu: str) -> set[str]:
    generation = load_gpu(gpu).generation
    return {name for name in kin_docs.ELSEWHERE if load_gpu(name).generation == generation}


def _quantile(values: Any, weights: Any, share: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(reached, share)])


# ------------------------------------------------------------------------------------------- files


def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _toml(table: Mapping[str, Any], head: str) -> str:
    lines = [head]
    for name, entries in table.items():
        lines += ["", f"[{name}]"]
        lines += [f'"{key}" = {{ {_inline(entry)} }}' for key, entry in sorted(entries.items())]
    return "\n".join(lines) + "\n"


def _inline(entry: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in entry.items())


if __name__ == "__main__":
    asked = sys.argv[1:]
    here = Path(asked[0]) if asked and Path(asked[0]).is_dir() else kin_docs.DATA
    main(here, [word for word in asked if word in kin_docs.FAMILIES])
