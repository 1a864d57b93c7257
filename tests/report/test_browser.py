"""The page in a real browser, where there is one: every figure is drawn, nothing is refused or fetched."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sartor.answers import Advice
from sartor.report.figures import advice_points
from sartor.report.page import advice_page

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=8000",
    "--dump-dom",
]


@pytest.mark.slow
def test_every_figure_is_drawn_under_the_policy_and_nothing_complains(advice: Advice, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser here: apt-get install chromium to draw the page for real")
    page = tmp_path / "page.html"
    page.write_text(advice_page(advice), encoding="utf-8")
    command = [browser, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    drawn = re.findall(r'<svg[^>]*class="marks"', shown.stdout)
    assert len(drawn) == len(advice_points(advice))
    assert "could not be drawn" not in shown.stdout.split("<script", 1)[0]
    assert "CONSOLE" not in shown.stderr, shown.stderr
