"""Measurements and calibrations for the terminal, from the JSON bodies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sartor.answers.field import text
from sartor.answers.measured import ARM, FIT_ERRORS, PAIR, REGION
from sartor.json_types import JsonMap
from sartor.report.document import Block, document_text, grid_block, section
from sartor.report.grid import field_grid, grid_of
from sartor.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_ROWS = 40


def measured_view(body: JsonMap) -> RenderableType:
    """Device, counts, skipped cases, and comparisons if the suite has them."""
    device = body["device"]
    software = f"torch {device['torch']}, driver {device['driver'] or 'unknown'}"
    counts = (
        f"suite {body['suite']}: {body['measured']} of {body['cases']} cases timed in {body['spent_s']:.0f} s"
        + (f", {body['kept']} already in the file" if body["kept"] else "")
        + (f", {body['again']} repeated" if body["again"] else "")
        + f"; {body['stopped']}"
        + (f", {body['left']} left (continue with --resume)" if body["left"] else "")
    )
    rows = ", ".join(f"{count} {table}" for table, count in body["rows"].items())
    blocks = [Block(words=counts), *_skipped(body), *_compared(body)]
    blocks += [Block(words=f"{body['file']} holds {rows or 'no row yet'}")]
    return document_text(blocks, f"{device['device']} as {device['gpu']} ({device['backend']}, {software})")


def _skipped(body: JsonMap) -> Iterator[Block]:
    for skipped in body["skipped"]:
        yield Block(words=f"skipped {skipped['count']}: {skipped['reason']} ({skipped['cases'][0]})")


def _compared(body: JsonMap) -> Iterator[Block]:
    """Predicted and measured times, longest first."""
    if not body["compared"]:
        return
    errors = body["errors"]["all"]
    yield section(f"Mean error of predictions: {errors['mape']:.0%} over {errors['cases']} cases")
    ordered = sorted(body["compared"], key=lambda row: -row["measured_s"])
    yield grid_block(field_grid("Predicted and measured", (CASE, PASS, *PAIR), ordered[:MOST_ROWS]))
    if len(ordered) > MOST_ROWS:
        yield Block(words=f"and {len(ordered) - MOST_ROWS} shorter ones")


def _label(row: JsonMap) -> str:
    """A short label of a case: its name, or table and sizes."""
    first = str(row.get("name") or row.get("model") or row.get("op") or row["table"])
    sizes = [str(row[name]) for name in ("m", "n", "k", "rows", "cols", "heads", "seq_q", "seq_kv") if name in row]
    return f"{first} {' x '.join(sizes)} {row.get('layout', '')}".strip()


CASE = text("case", "case", path=_label)
PASS = text("pass", "pass", path=lambda row: row.get("pass", row.get("phase")))


def study_view(body: JsonMap) -> RenderableType:
    """A case study: predicted and measured times of its arms."""
    study = body["study"]
    blocks = [section(study["question"]), grid_block(field_grid(study["question"], ARM, study["arms"]))]
    if study["median_points_apart"] is not None:
        difference = (
            f"predicted and measured speedups differ by {study['median_points_apart']:.1f} points (median), at most "
            f"{study['most_points_apart']:.1f}; {study['within_5_points']} of {study['compared']} within 5 points"
        )
        blocks.append(Block(words=difference))
    heading = f"{body['device']['device']}: study {study['name']}, {study['size']} sizes"
    return document_text([*blocks, *_skipped(body)], heading)


def parity_view(body: JsonMap) -> RenderableType:
    """Loss of two shapes by seed, the difference with its interval, and the difference at equal time."""
    parity = body["parity"]
    columns = ("shape", "parameters", "step", *(f"seed {seed}" for seed in parity["seeds"]), "mean")
    rows = []
    for shape in parity["shapes"]:
        final = [losses[-1] for losses in shape["losses"]]
        losses = (f"{loss:.4f}" for loss in [*final, sum(final) / len(final)])
        rows.append((shape["name"], f"{shape['num_params']:,}", format_seconds(shape["step_s"]), *losses))
    verdict = "significant" if parity["differs"] else "not significant"
    difference = (
        f"second minus first: {parity['loss_difference']:+.4f} (95%: {parity['low']:+.4f} to {parity['high']:+.4f}), "
        f"{verdict} with {len(parity['seeds'])} seeds of {parity['tokens_per_run']:,} tokens"
    )
    at_equal_time = (
        f"a step of the second is {parity['speedup']:.2f}x as fast; at equal time the loss difference is "
        f"{parity['equal_time_difference']:+.4f} (doubling the steps gains {parity['loss_per_doubling']:.4f})"
    )
    title = "Loss on held-out text [nats per byte]"
    table = grid_block(grid_of(title, columns, rows))
    return document_text([table, Block(words=difference), Block(words=at_equal_time)], title)


def calibration_view(body: JsonMap) -> RenderableType:
    """The fit and its errors on fitted and held-out shapes."""
    start = "catalogue" if body["start"] == body["gpu"] else body["start"]
    kinds = {
        "catalogue": "without this file",
        "before": f"start ({start})",
        "fit": "shapes fitted on",
        "held_out": "held-out regions",
    }
    records = [{**body[key], "of": words} for key, words in kinds.items()]
    grid = field_grid("Errors of the fit", (text("of", "errors of"), *FIT_ERRORS), records)
    lines = [
        f"{stream['section']}: {stream['before']:.0%} before, {stream['fit']:.0%} fitted on {stream['rows']} rows"
        for stream in body.get("streams", ())
    ]
    lines += [f"{body['rows']:,} rows, {body['shapes']:,} shapes, {body['samples']:,} fitted on"]
    base = "the package's own" if body["over"] == "package" else "fitted coefficients"
    lines += [f"predictions: {base}" + (" times a factor from these measurements" if body["own_rows"] else "")]
    lines += [f"80% intervals cover {body['coverage_80']:.0%} of held-out shapes"]
    lines += [f"left out {omitted['rows']:,} rows: {omitted['reason']}" for omitted in body["left_out"]]
    lines += [*body["remarks"], *([f"wrote {body['file']}"] if body["file"] else [])]
    heading = f"{body['gpu']} {body['dtype']}: {body['source']}"
    return document_text([grid_block(grid), *(Block(words=line) for line in lines)], heading)


def change_view(change: JsonMap) -> RenderableType:
    """Ratio of predicted times after over before, by region; changed coefficients."""
    grid = field_grid("Ratio of predicted times", REGION, change["regions"])
    upgraded = [f"{made['name']}: {made['before'] or '-'} -> {made['after'] or '-'}" for made in change["made_with"]]
    moved = [f"{entry['name']}: {entry['before']:.4g} -> {entry['after']:.4g}" for entry in change["coefficients"]]
    moved = moved or ["no coefficient changed by more than 2%"]
    blocks = [*(Block(words=line) for line in upgraded), grid_block(grid), *(Block(words=line) for line in moved)]
    return document_text(blocks, f"{change['after']} against {change['before']}")
