"""Write the tables of docs/concepts/residual.md from what tools/fit_residual.py recorded.

``python tools/residual_docs.py`` after a fit; ``--check`` only compares. Reads the package's files, nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sartor.hardware.residual import residual_records

PAGE = Path(__file__).resolve().parent.parent / "docs" / "concepts" / "residual.md"
MARK = "<!-- Below: written by tools/residual_docs.py. -->\n"


def main(check: bool) -> int:
    shown = PAGE.read_text(encoding="utf-8")
    now = shown.split(MARK)[0] + MARK + "\n".join(tables()) + "\n"
    if check:
        return int(now != shown)
    PAGE.write_text(now, encoding="utf-8")
    return 0


def tables() -> Iterator[str]:
    yield "\n## Held out\n"
    yield "| fit | rows | held out | formula MAPE | MAPE | median | p90 | large | in 80% |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for key, record in residual_records().items():
        held, formula = record["held_out"], record["formula"]
        shares = [formula["mape"], *(held[name] for name in ("mape", "median", "p90"))]
        large = _share(held["mape_large"]) if "mape_large" in held else ""
        covered = f"{record['coverage']:.0%}" if "coverage" in record else ""
        cells = [key, f"{record['rows']:,}", f"{held['rows']:,}", *map(_share, shares), large, covered]
        yield f"| {' | '.join(cells)} |"
    yield "\n## Lent\n"
    yield "| lender | borrower | formula MAPE | MAPE | median |\n|---|---|---|---|---|"
    for key, record in residual_records().items():
        for borrower, errors in record.get("lent", {}).items():
            yield f"| {key} | {borrower} | {' | '.join(_lent(errors))} |"


def _lent(errors: Mapping[str, Any]) -> list[str]:
    return [_share(errors[name]) for name in ("formula", "mape", "median")]


def _share(value: float) -> str:
    return f"{value:.1%}"


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
