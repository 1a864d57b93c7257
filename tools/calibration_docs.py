"""Write docs/calibrations.md: what every calibration file was fitted on and how far off it was on rows held out.

``python tools/calibration_docs.py`` after a fit; ``--check`` only compares. Reads the package's files, nothing else.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sartor.hardware.calibration_tables import calibration_files

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "calibrations.md"

HEAD = """# Calibrations

Made from `src/sartor/hardware/calibration/*.toml` by `tools/calibration_docs.py`; the files hold the coefficients.
Errors are of rows **held out** of the fit: for products from the tables a fifth of all weights (n, k); for the fp16
sweeps three of ten contiguous blocks of each; for kernels a fifth of the curves. MAPE is the mean of
|predicted/measured - 1|, bias the median of predicted/measured. A device that is not listed borrows
(`kin.toml`, `generations.toml`); how far that carries, device by device, is in [kin.md](kin.md), why in
[concepts/intervals.md](concepts/intervals.md).
"""


def page() -> str:
    files = calibration_files()
    gemm = [(name, table) for name, table in files.items() if "gemm" in table]
    rest = [(name, table) for name, table in files.items() if "gemm" not in table and "provenance" in table]
    parts = [HEAD, "## Products\n", _gemm_table(gemm), "\n## Kernels\n", _kernel_table(rest), "\n## Sources\n"]
    return "\n".join(parts) + _sources(gemm, rest)


def _gemm_table(files: list[tuple[str, dict[str, Any]]]) -> str:
    lines = [
        "| device and dtype | rows | held out | MAPE | median | p90 | bias | m, n, k >= 512 | tiles |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, table in files:
        record = table["provenance"]["gemm"]
        held = record["held_out"]
        cells = [
            name,
            f"{record['rows']:,}",
            f"{held['rows']:,.0f}",
            *_errors(held),
            _share(held.get("mape_512")),
            str(len(table["gemm"]["tiles"])),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _kernel_table(files: list[tuple[str, dict[str, Any]]]) -> str:
    lines = ["| device | kernels | rows | held out | MAPE | median | p90 | bias |", "|---|---|---|---|---|---|---|---|"]
    for name, table in files:
        for kind, record in _records(table):
            held = record["held_out"]
            cells = [name, kind, f"{record['rows']:,}", f"{held['rows']:,}", *_errors(held)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _records(table: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    out = []
    for section, record in table["provenance"].items():
        if "held_out" in record:
            out.append((section.replace("_", "-"), record))
        else:
            out += [(f"{section}, {part}", each) for part, each in record.items()]
    return out


def _errors(held: dict[str, float]) -> list[str]:
    return [_share(held["mape"]), _share(held["median"]), _share(held["p90"]), f"{held['bias']:.2f}"]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def _sources(gemm: list[tuple[str, dict[str, Any]]], rest: list[tuple[str, dict[str, Any]]]) -> str:
    lines = []
    for name, table in gemm:
        record = table["provenance"]["gemm"]
        lines.append(f"- {name} ({record['date']}): {record['source']}. {record['note']}")
    for name, table in rest:
        lines += [f"- {name}, {kind} ({record['date']}): {record['source']}" for kind, record in _records(table)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text(encoding="utf-8") == page() else "docs/calibrations.md is out of date")
    PAGE.write_text(page(), encoding="utf-8")
