"""``sartor extract`` for the terminal: kinds of layers, operators by FLOPs, totals."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sartor.model.traced import TracedLayer, TracedModel
from sartor.operators import Attention, Gemm, GroupedGemm, Operator, kind_name
from sartor.report.table_estimate import PASS_WORDS, notes, plain_table
from sartor.report.words import flops_text, printable, size_text
from sartor.units import format_count


def extract_view(model: TracedModel) -> RenderableType:
    """The trace, its layers, operators in execution order, and totals."""
    head = Text(printable(model.name), style="bold")
    head.append(
        f"  {model.module_class}, {model.phase}, {model.dtype.value}, "
        f"{model.microbatch_size} x {model.seq_len} tokens, {format_count(model.num_params)} parameters",
        style="dim",
    )
    return Group(head, _layers_table(model), operators_table(model), totals_line(model), *notes("Notes", model.notes))


def _layers_table(model: TracedModel) -> Table:
    """One row for each kind of layer."""
    table = plain_table("layers", "count", "params", "kept until backward")
    for layer in model.layers:
        cells = (str(layer.count), format_count(layer.num_params), _kept(layer))
        table.add_row(Text(printable(layer.name)), *cells)
    return table


def _kept(layer: TracedLayer) -> str:
    return f"{layer.stash_bytes / 2**20:,.1f} MiB"


def operators_table(model: TracedModel) -> Table:
    """Every operator; sizes of memory-bound kernels are rows and columns."""
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    table.add_column("operator", overflow="fold", min_width=24)
    table.add_column("kind", no_wrap=True)
    table.add_column("pass", no_wrap=True)
    table.add_column("count", justify="right", no_wrap=True)
    table.add_column("size", overflow="fold", min_width=20)
    table.add_column("GFLOP", justify="right", no_wrap=True)
    for op in model.graph.operators:
        cells = (op.name, kind_name(op), PASS_WORDS[op.pass_], str(int(op.count)), size_text(op), _gflop(op))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _gflop(op: Operator) -> str:
    return f"{float(op.flops) / 1e9:,.3g}" if isinstance(op, (Gemm, GroupedGemm, Attention)) else ""


def totals_line(model: TracedModel) -> RenderableType:
    """FLOPs, operators and edges of the whole trace."""
    graph = model.graph
    text = Text(f"{flops_text(float(graph.matmul_flops))} in matrix multiplications", style="bold")
    text.append(f"; {len(graph.operators)} operators, {len(graph.edges)} edges")
    return Padding(text, (1, 0, 0, 0), expand=False)
