"""A placement for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from sartor.answers.field import integer, through
from sartor.answers.solved import PLACED_STAGE
from sartor.placement.plan import Placement, Plan
from sartor.report.grid import Grid, field_grid, grid_view
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
    stages = grid_view(_stages_grid(found.plan))
    return Group(_headline(found.plan), stages, _picture(found.plan), _against_expert(found))


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


def _stages_grid(plan: Plan) -> Grid:
    """The stages from 1 on; bars are shares of the slowest."""
    slowest = max(stage.load_s for stage in plan.stages) or 1.0
    number = integer("stage", "stage", path=lambda pair: pair[0])
    columns = (number, *through(lambda pair: pair[1], PLACED_STAGE))
    bars = tuple(stage.load_s / slowest for stage in plan.stages)
    return field_grid("Stages", columns, enumerate(plan.stages, 1), bars=bars)


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
