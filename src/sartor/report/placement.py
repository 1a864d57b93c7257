"""A placement for the terminal and as JSON."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sartor.placement.plan import Placement, Plan, Stage
from sartor.report.words import printable
from sartor.units import format_seconds

PICTURE = 78
"""Width of the pipeline picture in characters."""
SHADES = "█▓"
"""Fill characters of alternate stages."""


def placement_view(found: Placement) -> RenderableType:
    """The plan in a sentence, its stages in a table, and the path of a microbatch as a picture."""
    if found.plan is None:
        reason = found.tightest.message if found.tightest else "nothing fits"
        return Group(Text("infeasible", style="bold red"), Text(reason))
    return Group(_headline(found.plan), _stage_table(found.plan), _picture(found.plan), _against_expert(found))


def _headline(plan: Plan) -> Text:
    text = Text(f"{format_seconds(plan.time_per_batch_s)} per batch", style="bold")
    text.append(
        f"  {plan.num_stages} stages x {plan.data_parallel} copies, tensor parallel {plan.tensor_parallel}: "
        f"{plan.num_devices} devices",
        style="not bold",
    )
    further = {
        "context parallel": plan.context_parallel - 1 and plan.context_parallel,
        "expert parallel": plan.expert_parallel - 1 and plan.expert_parallel,
        "chunks per device": plan.virtual_stages - 1 and plan.virtual_stages,
        "ZeRO": plan.zero_stage,
    }
    degrees = ", ".join(f"{name} {value}" for name, value in further.items() if value)
    text.append(f", {degrees}" if degrees else "", style="not bold")
    return text


def _stage_table(plan: Plan) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    for name in ("stage", "layers", "number", "devices", "time", "of the slowest"):
        table.add_column(name, justify="left" if name == "layers" else "right", overflow="fold")
    bottleneck = max(stage.load_s for stage in plan.stages) or 1.0
    for number, stage in enumerate(plan.stages, 1):
        table.add_row(
            str(number),
            _span(stage),
            str(len(stage.layers)),
            f"{stage.devices} {printable(stage.device_type)}".strip(),
            format_seconds(stage.load_s),
            f"{stage.load_s / bottleneck:.1%}",
        )
    return table


def _span(stage: Stage) -> str:
    """``-1..4`` where ids are consecutive, else the first few."""
    ids = stage.layers
    if len(ids) > 2 and ids == tuple(range(ids[0], ids[0] + len(ids))):
        return f"{ids[0]}..{ids[-1]}"
    return ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")


def _picture(plan: Plan) -> Text:
    """Stage times side by side, to scale."""
    total = sum(stage.load_s for stage in plan.stages)
    text, until, drawn = Text("\n"), 0.0, 0
    for number, stage in enumerate(plan.stages):
        until += stage.load_s
        columns = round(PICTURE * until / (total or 1.0)) - drawn
        drawn += columns
        text.append(SHADES[number % len(SHADES)] * columns)
    text.append(f"\none microbatch through all stages: {format_seconds(total)}", style="dim")
    return text


def _against_expert(found: Placement) -> Text:
    assert found.plan is not None
    expert = found.fixed_strategy_time_per_batch_s
    if expert is None:
        return Text("expert strategy: none given, or it does not fit", style="dim")
    ratio = expert / found.plan.time_per_batch_s if found.plan.time_per_batch_s else 1.0
    return Text(f"expert strategy: {format_seconds(expert)} per batch; the plan is {ratio:.3f}x as fast", style="dim")
