"""The page in a real browser, where there is one: every figure is drawn, nothing is refused or fetched."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sartor.answers.advice import Advice
from sartor.report.advice_document import advice_page
from sartor.report.figures import advice_points

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


NARROW = 360
"""Pixels of a small telephone."""


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


@pytest.mark.slow
def test_a_narrow_page_keeps_its_legends_and_does_not_scroll_sideways(advice: Advice, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright to look at a narrow page")
    if browser is None:
        pytest.skip("no browser here: apt-get install chromium to draw the page for real")
    file = tmp_path / "page.html"
    file.write_text(advice_page(advice), encoding="utf-8")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = opened.new_page(viewport={"width": NARROW, "height": 780})
        page.goto(file.as_uri())
        page.wait_for_function(f"document.querySelectorAll('svg.marks').length == {len(advice_points(advice))}")
        edges = page.eval_on_selector_all(
            ".role-legend-label", "all => all.map(e => e.getBoundingClientRect().toJSON())"
        )
        width = page.evaluate("document.documentElement.scrollWidth")
        opened.close()
    assert len(edges) >= 10  # of three figures
    assert all(0 <= edge["left"] < edge["right"] <= NARROW for edge in edges)
    assert width == NARROW
