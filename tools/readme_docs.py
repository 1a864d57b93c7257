"""Refresh the generated parts of README.md: the accuracy table and the demo's output.

``--check`` only compares the texts. No measurements are needed: held-out errors are in the calibration files.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from held_out import HeldOut, error_range, held_out_errors
from sartor.cost.correction.calibration_file import packaged_training_table

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DEMO = ("advise", "examples/pythia-2.8b/config.json", "--gpu", "a100")

SIXTEEN_BITS, GENERAL_CORES = ("bf16", "fp16"), ("fp32",)


def accuracy_table() -> str:
    """Held-out mean error per operator family, from the best to the worst GPU, and of training steps over sources."""
    lines = ["Mean error on data the fit has not seen: unseen shapes for operators, unseen sources for training.", ""]
    lines += ["| prediction | tested on | mean error |", "|---|---|---|"]
    lines += [f"| {' | '.join(cells)} |" for cells in (*operator_lines(), *training_lines())]
    return "\n".join(lines)


def operator_lines() -> Iterator[tuple[str, str, str]]:
    errors = held_out_errors()
    gemm = [each for each in errors if each.family == "GEMM"]
    narrow = [each for each in gemm if each.variant not in (*SIXTEEN_BITS, *GENERAL_CORES)]
    yield _line("GEMM, bf16 and fp16", [each for each in gemm if each.variant in SIXTEEN_BITS])
    yield _line("GEMM, fp8, int8, nvfp4, int4", narrow)
    yield _line("GEMM, fp32", [each for each in gemm if each.variant in GENERAL_CORES])
    for family in ("attention", "memory-bound kernels", "collectives", "MoE layer"):
        yield _line(family, [each for each in errors if family.startswith(each.family)])


def _line(name: str, errors: list[HeldOut]) -> tuple[str, str, str]:
    gpus = len({each.gpu for each in errors})
    return (name, f"{gpus} GPUs", error_range(errors))


def training_lines() -> Iterator[tuple[str, str, str]]:
    """Table lines for training steps: errors with the tested source, or the tested scale, held out of the fit."""
    provenance = packaged_training_table()["provenance"]
    sources = len(provenance["sources"])
    each = [found["mape"] for found in provenance["each_source_held_out"].values()]
    name = f"training step, each of {sources} sources left out in turn ({min(each):.0%} to {max(each):.0%} by source)"
    yield _left_out(name, provenance["source_held_out"]["all"])
    name = "training step on more than 1,024 devices, fitted on smaller clusters"
    yield _left_out(name, provenance["scale_held_out"]["all"])


def _left_out(name: str, errors: Mapping[str, float]) -> tuple[str, str, str]:
    return (name, f"{int(errors['rows'])} runs", f"{errors['mape']:.1%} (90% within {errors['p90']:.1%})")


def demo_output() -> str:
    """The output of ``make demo``."""
    command = [sys.executable, "-m", "sartor", *DEMO]
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "COLUMNS": "100"}, capture_output=True, text=True, check=True
    )
    return "\n".join(["```text", *(line.rstrip() for line in ran.stdout.splitlines()), "```"])


def refreshed(text: str) -> str:
    """The README with both blocks up to date."""
    return _replaced(_replaced(text, "accuracy", accuracy_table()), "demo", demo_output())


def _replaced(text: str, name: str, content: str) -> str:
    block = re.compile(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- /{name} -->)", re.DOTALL)
    return block.sub(lambda match: f"{match[1]}{content}\n{match[2]}", text)


def main() -> int:
    text = README.read_text(encoding="utf-8")
    new = refreshed(text)
    if "--check" in sys.argv:
        return int(new != text)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
