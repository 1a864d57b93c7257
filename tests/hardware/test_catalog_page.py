"""docs/catalog.md is what the datasheets and the zoo say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_catalogue_page_is_up_to_date(repo_dir: Path) -> None:
    tool = repo_dir / "tools" / "catalog_docs.py"
    checked = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, f"run make docs {checked.stderr}"


def test_every_key_of_a_datasheet_is_explained(repo_dir: Path) -> None:
    from sartor.hardware.catalog import _NUMBERS, _TEXTS

    page = (repo_dir / "docs" / "concepts" / "hardware.md").read_text(encoding="utf-8")
    assert [key for key in (*_NUMBERS, *_TEXTS, "peak_dense_tflops", "price", "sources") if key not in page] == []
