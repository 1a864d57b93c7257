"""Write the tables of docs/concepts/residual.md (a line per kind of operator) and of lab/notebook/residual.md (a line
per network) from the records of lab/fit_residual.py.

``python tools/residual_docs.py`` after a fit; ``--check`` only compares. Reads only the package's files. Handwritten
text is kept: above the first mark, and below the second if a page has one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from sartor.cost.correction.network import FRAMEWORK, residual_records

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "concepts" / "residual.md"
NOTEBOOK = ROOT / "lab" / "notebook" / "residual.md"
MARK = "<!-- Below: written by tools/residual_docs.py. -->\n"
END = "<!-- Above: written by tools/residual_docs.py. -->\n"
EACH = f".{FRAMEWORK}"
KINDS = {
    "bf16": "GEMM bf16", "fp8": "GEMM fp8", "fp8_block": "GEMM fp8, block-scaled", "nvfp4": "GEMM nvfp4",
    "int8": "GEMM int8", "int8_wo": "GEMM int8 weights only", "int4_wo": "GEMM int4 weights only",
    "fp32": "GEMM fp32", EACH: "GEMM of 8 and 4 bits, framework known", "context": "attention, prefill",
    "generation": "attention, decode",
    "encoder": "attention, encoder", "context.": "attention, prefill, framework known",
    "generation.": "attention, decode, framework known", "encoder.": "attention, encoder, framework known",
    "moe.": "MoE layers, kernel known", "moe": "MoE layers, kernel unknown",
}  # fmt: skip


def main(check: bool) -> int:
    stale = False
    for page, lines in ((PAGE, summary()), (NOTEBOOK, tables())):
        shown = page.read_text(encoding="utf-8")
        before, _, generated = shown.partition(MARK)
        _, end, after = generated.partition(END)
        now = before + MARK + "\n".join(lines) + "\n" + (end and "\n" + end) + after
        stale |= now != shown
        if not check:
            page.write_text(now, encoding="utf-8")
    return int(check and stale)


def summary() -> Iterator[str]:
    """Means over the networks of a kind, each network counted once."""
    yield "\n| networks for | how many | formula | with the network | median | p90 | in 80% |"
    yield "|---|---|---|---|---|---|---|"
    for kind, heading in KINDS.items():
        records = [record for key, record in residual_records().items() if _kind(key) == kind]
        held = [record["held_out"] for record in records]
        covered = [record["coverage"] for record in records if "coverage" in record]
        formula = [record["formula"]["mape"] for record in records]
        shares = [formula, *([each[name] for each in held] for name in ("mape", "median", "p90"))]
        cells = [heading, str(len(records)), *(_share(mean(share)) for share in shares), f"{mean(covered):.0%}"]
        yield f"| {' | '.join(cells)} |"


def _kind(key: str) -> str:
    if key.endswith(EACH):
        return EACH
    kind, dot, _ = key.partition(".")[2].partition(".")
    return kind + dot


def tables() -> Iterator[str]:
    yield "\n## Held out, by network\n"
    yield "| fit | rows | held out | formula MAPE | MAPE | median | p90 | large | in 80% |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for key, record in residual_records().items():
        held, formula = record["held_out"], record["formula"]
        shares = [formula["mape"], *(held[name] for name in ("mape", "median", "p90"))]
        large = _share(held["mape_large"]) if "mape_large" in held else ""
        covered = f"{record['coverage']:.0%}" if "coverage" in record else ""
        cells = [key, f"{record['rows']:,}", f"{held['rows']:,}", *map(_share, shares), large, covered]
        yield f"| {' | '.join(cells)} |"
    yield "\n## Borrowed\n"
    yield "| fitted on | used for | formula MAPE | MAPE | median |\n|---|---|---|---|---|"
    for key, record in residual_records().items():
        for borrower, errors in record.get("lent", {}).items():
            yield f"| {key} | {borrower} | {' | '.join(_lent(errors))} |"


def _lent(errors: Mapping[str, Any]) -> list[str]:
    return [_share(errors[name]) for name in ("formula", "mape", "median")]


def _share(value: float) -> str:
    return f"{value:.1%}"


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
