"""``sartor design --shapes``: shapes and chips against each other as JSON, tables and a figure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.answers.design import params_change, rate
from sartor.designs.baselines import NamedChip
from sartor.designs.question import EQUAL
from sartor.designs.shapes import ShapeDesign
from sartor.designs.shapes_proved import JointShapes
from sartor.report.design_words import memory_text, short_chip
from sartor.report.frame import FILE, Chart, Frame, Sheet, columns
from sartor.report.grid import Grid, GridColumn, grid_of
from sartor.report.words import printable
from sartor.units import format_share


@dataclass(frozen=True, slots=True, kw_only=True)
class RegretMatrix:
    """Share of throughput each shape loses on each chip against its own best chip [shapes, chips]."""

    title: str
    shapes: tuple[str, ...]
    chips: tuple[str, ...]
    regret: npt.NDArray[np.float64]
    reached: npt.NDArray[np.float64]


def joint_lines(joint: JointShapes) -> list[str]:
    """The best shapes, and the gain from searching them together with the chip."""
    before, several = joint.as_it_is.best, len(joint.shapes) > 1
    if before is None:
        return []
    chip = short_chip(before.evaluation.point.accelerator)
    lines = [
        f"Best shape{f' of {shape.model}' if several else ''}: {shape.variant.name} ({params_change(shape):+.1%} "
        f"parameters); the other shapes of this size ({shape.axes.num_shapes:,} in all) reduce to "
        f"{len(shape.axes.variants):,}, as a wider one is never faster."
        for shape in joint.shapes
    ]
    others = "" if joint.result.waiting else ", the others ruled out by their upper bounds"
    as_it_is = "the models as they are with their" if several else "the model as it is with its"
    lines.append(
        f"This is {joint.gain:.3f}x {as_it_is} best chip ({chip}); {joint.searched:,} shapes were searched{others}."
    )
    if (gain := joint.gain_over_turns) is not None:
        alone = "gains nothing" if gain <= 1 + EQUAL else f"gains {gain - 1:.2%}"
        lines.append(f"Searching shape and chip together {alone} over the chip first and then the shape for it.")
    return lines


def shapes_lines(design: ShapeDesign) -> list[str]:
    """The best pair, the best chip for all shapes, the best shape for all chips."""
    index, value = design.best
    original = next((i for i, variant in enumerate(design.variants) if not variant.changed), 0)
    chip, (robust, worst) = design.chips[design.chip_for_family], design.fleet_shape
    worst_of_chip = float(design.chip_regret[:, design.chip_for_family].max())
    gain = value / float(design.best_rate[original]) if design.best_rate[original] else 1.0
    where = "the fleet" if any(design.fleet) else "all of these chips"
    return [
        f"Best pair: {design.variants[index].name} on its own best chip, {rate(value)} sequences/s "
        f"({gain:.2f}x the unchanged model on its best chip).",
        f"Best chip for all shapes: {_chip_label(chip)}; no shape loses more than {format_share(worst_of_chip)} on it.",
        f"Best shape for {where}: {design.variants[robust].name}; it loses at most {format_share(worst)} against the "
        "best shape of each.",
    ]


def regret_grid(design: ShapeDesign) -> Grid:
    """Throughput lost on a chip against the shape's own best chip."""
    count = len(design.variants)
    rows: list[tuple[str, ...]] = [
        (_chip_label(chip), *(_loss(design, shape, c) for shape in range(count))) for c, chip in enumerate(design.chips)
    ]
    rows.append(("seq/s on its best chip", *(rate(float(reached)) for reached in design.best_rate)))
    rows += [(f"shape {i + 1}: {variant.name}", *[""] * count) for i, variant in enumerate(design.variants)]
    return grid_of("Throughput lost", ("chip", *(f"shape {i + 1}" for i in range(count))), rows)


def _loss(design: ShapeDesign, shape: int, chip: int) -> str:
    return format_share(float(design.chip_regret[shape, chip])) if design.reached[shape, chip] else "no fit"


def rates_grid(design: ShapeDesign) -> Grid:
    """Throughput of every shape on every chip."""
    columns = [GridColumn(head=f"shape {i + 1}", explains=shape.name) for i, shape in enumerate(design.variants)]
    rows = [
        (
            _chip_label(chip),
            ", ".join(memory_text(size) for size in chip.hbm_bytes),
            *(rate(float(reached)) if reached else "no fit" for reached in design.reached[:, c]),
        )
        for c, chip in enumerate(design.chips)
    ]
    caption = "Sequences per second of every shape on every chip, with searched placement"
    return grid_of(caption, ("chip", "memory", *columns), rows)


def _chip_label(chip: NamedChip) -> str:
    """``16x256x128 + 32x256, 96 MiB (best for all shapes)``."""
    name = "best for all shapes" if chip.for_all_shapes else chip.name.replace(" and shape ", ", ")
    return f"{short_chip(chip.accelerator)} ({printable(name)})"


def regret_points(design: ShapeDesign) -> RegretMatrix:
    """The regret matrix as the record of its figure."""
    fits = design.reached > 0
    smallest = float(design.chip_regret[:, design.chip_for_family].max())
    return RegretMatrix(
        title=f"On the best chip for all shapes, no shape loses more than {format_share(smallest)}",
        shapes=tuple(f"{i + 1}: {printable(entry.name)}" for i, entry in enumerate(design.variants)),
        chips=tuple(_chip_label(entry) for entry in design.chips),
        regret=np.where(fits, design.chip_regret, np.nan),
        reached=design.reached,
    )


def draw_regrets(points: RegretMatrix, frame: Frame = FILE) -> Chart:
    """Cells by shape and chip; darker cells lose more throughput."""
    sheet = Sheet.of(frame)
    alt, theme = sheet.alt, sheet.theme
    count, losses = len(points.chips), points.regret.ravel().tolist()
    rows = columns(
        shape=[f"shape {i + 1}" for i in range(len(points.shapes)) for _ in points.chips],
        what=[shape for shape in points.shapes for _ in points.chips],
        chip=points.chips * len(points.shapes),
        regret=[loss if np.isfinite(loss) else None for loss in losses],
        rate=points.reached.ravel(),
        words=[f"{100 * loss:.1f}%" if np.isfinite(loss) else "no fit" for loss in losses],
    )
    x = alt.X("shape:N", title=None, axis=alt.Axis(labelAngle=0))
    y = sheet.names("chip", points.chips)
    shade = alt.Opacity("regret:Q", scale=alt.Scale(domain=[0, 1], range=[0.04, 0.9]), legend=None)
    tips = sheet.hover(("what:N", "shape"), "chip:N", ("regret:Q", "lost", ".2%"), ("rate:Q", "sequences/s", ",.5~g"))
    cells = sheet.rows(rows).mark_rect(stroke=theme.surface, strokeWidth=2, color=theme.vermillion).encode(
        x=x, y=y, opacity=shade, tooltip=tips
    )  # fmt: skip
    words = sheet.rows(rows).mark_text(fontSize=11, color=theme.ink).encode(x=x, y=y, text="words:N")
    return sheet.finish(cells + words, points.title, height=max(34 * count, 80))
