"""``estimate`` of many runs at once: figures as arrays over the grid that the fields with several values span."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sartor.answers.field import (
    Answer,
    Fields,
    Level,
    Scalar,
    field,
    flag,
    integer,
    mapping,
    number,
    numbers,
    rows,
    text,
)
from sartor.answers.plan import INTERVAL
from sartor.hardware.gpu import Gpu
from sartor.model.workload import ModelReading
from sartor.units import Array, BoolArray, FloatArray

POINT: Fields = (
    mapping("", Scalar.ANY, path="values", help="the point: a value of every field that has several"),
    *INTERVAL,
    number("tokens_per_s", "tokens/s"),
    *numbers("tokens_per_s_per_device"),
    number("mfu", "MFU", help="share of dense peak"),
    number("peak_bytes", "memory", help="of the fullest device"),
    flag("fits", "fits", null=True, help="null: unknown, sizes of the config were not read"),
    text("cannot_run", null=True, help="why the point has no figures: a degree does not divide the model"),
    field("plan", (mapping("", Scalar.ANY, path=lambda plan: plan),), help="axes of the plan that the search chose"),
)
GRID: Fields = (
    text("model", "model", path="reading.shape.name", level=Level.HEADLINE),
    text("gpu", "GPU", path="gpu.name", level=Level.HEADLINE),
    integer("num_points", "points", level=Level.HEADLINE),
    text(
        "grid",
        "grid",
        path=lambda grid: " x ".join(f"{len(v)} {n}" for n, v in grid.axes.items()),
        level=Level.HEADLINE,
    ),
    text(
        "cannot_run",
        "cannot run",
        path=lambda grid: "; ".join(dict.fromkeys(filter(None, grid.cannot_run.ravel().tolist()))),
        when=lambda grid: bool(np.any(grid.cannot_run != "")),
        level=Level.HEADLINE,
    ),
    number("usable_bytes", path=lambda grid: float(grid.usable_bytes.flat[0])),
    rows("points", POINT, path=lambda grid: list(grid.points())),
    rows("assumptions", Scalar.TEXT),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EstimateGrid(Answer):
    """`sartor.estimate` at every point of a grid. A figure is an array with an axis per field of ``axes``; nan
    where no plan has the point's values (`cannot_run` says why)."""

    FIGURES: ClassVar[tuple[str, ...]] = (
        *("time_s", "low_s", "high_s", "tokens_per_s", "tokens_per_s_per_device", "mfu", "peak_bytes", "usable_bytes"),
    )
    fields: ClassVar[Fields] = GRID
    reading: ModelReading
    gpu: Gpu
    axes: Mapping[str, tuple[Any, ...]]
    """The fields with several values, and the values."""
    plan: Mapping[str, Array]
    """Training: the other axes of the plan at every point, stated or searched."""
    time_s: FloatArray
    """Seconds of a training step, or of one inference pass."""
    low_s: FloatArray
    high_s: FloatArray
    """The 80% interval, as of the single call: it holds what stays open (`assumptions`)."""
    tokens_per_s: FloatArray
    """Of all devices of a training plan; in inference of one replica."""
    tokens_per_s_per_device: FloatArray
    mfu: FloatArray
    peak_bytes: FloatArray
    """Peak memory of the fullest device."""
    usable_bytes: FloatArray
    """Memory of a device that may be used."""
    fits: BoolArray
    """Whether a run is as likely to fit as it must be, of the model without the sizes that were not read."""
    cannot_run: Array
    """Why a point has no figures, in words: a degree does not divide the model. Empty for all others."""
    assumptions: tuple[str, ...] = ()
    """What was not stated; in training also which facts are open beside the plan, and what other values change."""

    @property
    def num_points(self) -> int:
        return math.prod(map(len, self.axes.values()))

    def points(self) -> Iterator[Mapping[str, Any]]:
        """Every point as a record, the last axis fastest."""
        figures = {name: getattr(self, name).ravel().tolist() for name in (*self.FIGURES, "fits")}
        plan = {name: column.ravel().tolist() for name, column in self.plan.items()}
        words = self.cannot_run.ravel().tolist()
        for i, index in enumerate(np.ndindex(self.time_s.shape)):
            yield {
                "values": {name: values[at] for (name, values), at in zip(self.axes.items(), index, strict=True)},
                "plan": {name: column[i] for name, column in plan.items()},
                "cannot_run": words[i] or None,
                **{name: column[i] for name, column in figures.items()},
                "fits": self.reading.known(figures["fits"][i]),
            }
