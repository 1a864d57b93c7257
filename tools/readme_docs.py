"""Refresh what README.md takes from data: the accuracy tables and the picture. ``--check`` compares the tables only.

The tables are made from the held-out errors that stand in the calibration files, so they need no measurements.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sartor.hardware.calibration import load_calibration
from sartor.hardware.catalog import load_gpu
from sartor.hardware.residual import residual_records

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- accuracy: [^\n]*-->\n).*?(<!-- /accuracy -->)", re.DOTALL)
GPUS = ("a100_sxm", "h200_sxm", "b200_sxm", "gb200", "b300_sxm", "gb300", "rtx_pro_6000_server")
COLUMNS = {
    "bf16": ("bf16", "gemm.bf16"),
    "fp8": ("fp8", "gemm.fp8"),
    "fp8 block": ("fp8_block", "gemm.fp8_block"),
    "nvfp4": ("nvfp4", "gemm.nvfp4"),
    "attention prefill": ("context", "attention.prefill"),
    "decode": ("generation", "attention.decode"),
    "encoder": ("encoder", ""),
    "all-reduce etc.": ("", "collective"),
}
"""Heading -> part of the learned correction, part of the formula's calibration."""
EXPERTS = ("experts, whose kernels told", "not told")
"""Whole models (their shapes of experts) held out; the mean over families of kernels, by their rows."""
STEPS = ("16-bit NVIDIA", "fp8, fp4 or experts", "TPU")


def accuracy_tables() -> str:
    return "\n".join([*operators_table(), "", *training_table()])


def operators_table() -> Iterator[str]:
    """Held-out mean (median) absolute error per device and operator family, as Markdown."""
    yield "Operators: mean (median) absolute error on shapes the fit has not seen (whole weight shapes for products,"
    yield "whole curves of sizes, whole models of experts), against medians over frameworks and versions, whose own"
    yield "spread is 2 to 5%."
    yield ""
    yield f"| GPU | {' | '.join((*COLUMNS, *EXPERTS))} |"
    yield f"|---|{'---|' * len((*COLUMNS, *EXPERTS))}"
    learned = residual_records()
    for gpu in GPUS:
        provenance = load_calibration(load_gpu(gpu)).provenance
        cells = [_error(learned.get(f"{gpu}.{part}", {}), provenance, key) for part, key in COLUMNS.values()]
        cells += [_experts(learned, f"{gpu}.moe."), _error(learned.get(f"{gpu}.moe", {}), provenance, "grouped")]
        yield f"| {gpu} | {' | '.join(cells)} |"


def training_table() -> Iterator[str]:
    """Held-out error of whole training steps, as Markdown."""
    provenance = training_provenance()
    yield f"Training steps, plan known: {provenance['rows']} published runs, each predicted by constants fitted without"
    yield "any run of its device, of its model, or of its source (docs/concepts/training-accuracy.md)."
    yield ""
    yield "| runs | held out | runs | mean error | 90% within | bias | inside the 80% interval |"
    yield "|---|---|---|---|---|---|---|"
    for group in STEPS:
        for held in ("device", "model", "source"):
            errors = provenance[f"{held}_held_out"][group]
            cells = (
                f"{errors['mape']:.1%}",
                f"{errors['p90']:.1%}",
                f"{errors['bias']:+.1%}",
                f"{errors['coverage_80']:.0%}",
            )
            yield f"| {group} | by {held} | {errors['rows']} | {' | '.join(cells)} |"


def training_provenance() -> Mapping[str, Any]:
    path = ROOT / "src" / "sartor" / "hardware" / "calibration" / "training.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))["provenance"]


def _error(learned: Mapping[str, Any], provenance: Mapping[str, Any], key: str) -> str:
    """Of the prediction that ships: with the learned correction where there is one, of the formula elsewhere."""
    family, _, part = key.partition(".")
    section = provenance.get(key) or provenance.get(family, {}).get(part or "held_out") or {}
    held = learned.get("held_out") or section.get("held_out") or (section if "mape" in section else None)
    return f"{100 * held['mape']:.1f}% ({100 * held['median']:.1f}%)" if held else ""


def _experts(learned: Mapping[str, Any], prefix: str) -> str:
    held = [record["held_out"] for name, record in learned.items() if name.startswith(prefix)]
    rows = sum(each["rows"] for each in held)
    return f"{100 * sum(each['rows'] * each['mape'] for each in held) / rows:.1f}%"


def refreshed(text: str) -> str:
    return BLOCK.sub(lambda match: f"{match[1]}{accuracy_tables()}\n{match[2]}", text)


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
