"""Refresh what README.md takes from data: the accuracy table and the picture. ``--check`` compares the table only.

The table is made from the held-out errors that stand in the calibration files, so it needs no measurements.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sartor.hardware.calibration import load_calibration
from sartor.hardware.catalog import load_gpu

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- accuracy: [^\n]*-->\n).*?(<!-- /accuracy -->)", re.DOTALL)
GPUS = ("a100_sxm", "h200_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300", "rtx_pro_6000_server")
PRODUCTS = {"bf16": "gemm.bf16", "fp8": "gemm.fp8", "fp8 block": "gemm.fp8_block", "nvfp4": "gemm.nvfp4"}
OTHERS = {"attention prefill": "attention.prefill", "decode": "attention.decode", "all-reduce etc.": "collective"}


def accuracy_table() -> str:
    """Held-out mean (median) absolute error per device and operator family, as Markdown."""
    columns = {**PRODUCTS, **OTHERS}
    lines = [
        "Mean (median) absolute error on shapes the fit has not seen: whole weight shapes for products, contiguous",
        "blocks of sizes otherwise; against medians over frameworks and versions, whose own spread is 2 to 5%.",
        "",
        f"| GPU | {' | '.join(columns)} |",
        f"|---|{'---|' * len(columns)}",
    ]
    for gpu in GPUS:
        provenance = load_calibration(load_gpu(gpu)).provenance
        cells = [_cell(provenance, key) for key in columns.values()]
        lines.append(f"| {gpu} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(provenance: Mapping[str, Any], key: str) -> str:
    family, _, part = key.partition(".")
    section = provenance.get(key) or provenance.get(family, {}).get(part or "held_out") or {}
    held = section.get("held_out") or (section if "mape" in section else None)
    return f"{100 * held['mape']:.1f}% ({100 * held['median']:.1f}%)" if held else ""


def refreshed(text: str) -> str:
    return BLOCK.sub(lambda match: f"{match[1]}{accuracy_table()}\n{match[2]}", text)


def main() -> int:
    text = README.read_text(encoding="utf-8")
    new = refreshed(text)
    if "--check" in sys.argv:
        return int(new != text)
    README.write_text(new, encoding="utf-8")
    draw_picture()
    return 0


def draw_picture() -> None:
    """Time by operator of the demo, as docs/figures/readme.png."""
    import sartor
    from sartor.report.charts import draw, to_png
    from sartor.report.figures import advice_points
    from sartor.report.files import write_atomic

    advice = sartor.advise(ROOT / "examples" / "pythia-2.8b" / "config.json", gpu="a100")
    write_atomic(
        ROOT / "docs" / "figures" / "readme.png", to_png(draw(advice_points(advice)["time_by_operator"]), scale=1.0)
    )


if __name__ == "__main__":
    sys.exit(main())
