"""Take a screenshot of `sartor page` for docs/howto/serve.md with playwright: ``python tools/page_docs.py``."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import Any

from run_docs import write_figure

NAME = "serve-shape"
QUESTION = {"model": "GPT-3 2.7B", "gpu": "a100_sxm", "framework": "torchtitan"}
"""The page's question when it is opened."""
SIZE = {"width": 1280, "height": 900}


def shown() -> Any:
    """The data in the screenshot: totals, operators and sweeps of the question."""
    from sartor.web.work import Answerer

    answer = json.loads(Answerer().fresh("shape", {}, json.dumps(QUESTION).encode()).body)
    return {key: answer[key] for key in ("totals", "operators", "sweeps")}


def main() -> int:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        browser = None
    if browser is None:
        print("page_docs: skipped, as playwright or chromium is missing")
        return 0
    command = [sys.executable, "-c", "from sartor.cli import main; main()", "page", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server, sync_playwright() as driver:
        try:
            assert server.stderr is not None
            address = re.search(r"http://\S+", server.stderr.readline())
            assert address
            opened = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            page = opened.new_page(viewport=SIZE, color_scheme="light")
            page.goto(address[0])
            page.wait_for_selector("#advice > *", timeout=120_000)
            write_figure(NAME, page.screenshot(), shown())
        finally:
            server.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main())
