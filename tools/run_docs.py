"""Run the Python in docs pages and keep what they print and draw up to date. ``--check`` only compares;
``--insert`` adds output blocks where there are none.

A page's ```` ```python ```` blocks share one namespace and run in the repository's root. The output of a block is in
the ```` ```text ```` block right after it; ``save(points, "name")`` draws a record to ``docs/figures/name.png``. A
block after ``<!-- not run -->`` is skipped. ``docs/figures/numbers.json`` has a digest of the numbers that each figure
shows; with other numbers the figure is stale, like a page. Run after changing a page or the model:
``python tools/run_docs.py``.

Lines after a ``$ sartor`` command of a ```` ```console ```` block are excerpts of what it prints, however it wraps.
They are checked, not written: ``--check`` and a test say which are not printed any more, and what is.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import hashlib
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "lab"))  # notebook pages import its modules
FIGURES = ROOT / "docs" / "figures"
NUMBERS = FIGURES / "numbers.json"
DIGITS = 4
"""Significant digits of a figure's numbers that count for its digest."""
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?P<output>\n```text\n.*?^```\n)?", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(?P<text>.*?)^```\n", re.MULTILINE | re.DOTALL)
NOT_RUN = "<!-- not run -->\n"


def pages() -> Iterator[Path]:
    """Every page of docs and of the notebook with Python blocks."""
    for path in sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "lab").rglob("*.md")]):
        if "```python" in path.read_text(encoding="utf-8"):
            yield path


def refreshed(page: Path, *, draw: bool = True, insert: bool = False) -> str:
    """The page's text with all outputs up to date; with ``draw``, its figures are written too.

    A block that has no output block gets one only with ``insert``.
    """
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "__docs__", "save": _saver(draw)}

    def run(match: re.Match[str]) -> str:
        if text[: match.start()].endswith(NOT_RUN):
            return match[0]
        printed = _run(match["code"], namespace, f"{page.name}, line {text[: match.start()].count(chr(10)) + 2}")
        wanted = printed and (match["output"] or insert)
        output = f"\n```text\n{printed}```\n" if wanted else ""
        return f"```python\n{match['code']}```\n{output}"

    with contextlib.chdir(ROOT):
        return BLOCK.sub(run, text)


def _run(code: str, namespace: dict[str, Any], where: str) -> str:
    """The output of a block, without trailing blanks."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, where, "exec"), namespace)
    lines = [line.rstrip() for line in out.getvalue().rstrip().splitlines()]
    return "".join(f"{line}\n" for line in lines)


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Every `sartor` command of a page's console blocks that shows something, and the lines it shows."""
    for block in CONSOLE.finditer(page.read_text(encoding="utf-8")):
        for each in re.split(r"^\$ ", block["text"].replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            command, _, shown = each.partition("\n")
            lines = [line for line in shown.splitlines() if line.strip()]
            if command.startswith("sartor ") and lines:
                yield command, lines


def not_printed(command: str, lines: list[str]) -> list[str]:
    """The lines that the command does not print, each with the one it prints that is most like it."""
    out = printed(command)
    whole, near = _words(out), out.splitlines()
    return [
        f"{line.strip()}\n    now: {_words(''.join(difflib.get_close_matches(line, near, n=1, cutoff=0)))}"
        for line in lines
        if _words(line) not in whole
    ]


@cache
def printed(command: str) -> str:
    """What a `sartor` command prints on a wide terminal."""
    from sartor.cli import run

    out, width = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "200"
    try:
        with contextlib.chdir(ROOT), contextlib.redirect_stdout(out):
            run(shlex.split(command, comments=True)[1:])
    finally:
        os.environ.pop("COLUMNS") if width is None else os.environ.update(COLUMNS=width)
    return out.getvalue()


def _words(text: str) -> str:
    return " ".join(text.split())


def _saver(draw: bool) -> Callable[[Any, str], None]:
    def save(points: Any, name: str) -> None:
        """Draw a record of sartor.report.points to docs/figures/NAME.png; without ``draw``, check that it is fresh."""
        if not draw:
            assert numbers().get(name) == digest(points), f"docs/figures/{name}.png shows other numbers than the model"
            return
        from sartor.report.charts import draw as draw_chart
        from sartor.report.charts import to_png

        write_figure(name, to_png(draw_chart(points), scale=1.0), points)

    return save


def write_figure(name: str, png: bytes, points: Any) -> None:
    """Write docs/figures/NAME.png and note the numbers it shows."""
    from sartor.files import write_atomic

    write_atomic(FIGURES / f"{name}.png", png)
    noted = dict(sorted({**numbers(), name: digest(points)}.items()))
    write_atomic(NUMBERS, (json.dumps(noted, indent=1) + "\n").encode())


def numbers() -> dict[str, str]:
    """The digest of each figure's numbers when it was drawn."""
    found: dict[str, str] = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {}
    return found


def digest(points: Any) -> str:
    """Digest of a record's words and of its numbers, rounded to ``DIGITS`` digits."""
    from sartor.json_types import plain

    return hashlib.sha256(json.dumps(_rounded(plain(points)), sort_keys=True).encode()).hexdigest()[:16]


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS - 1}e}") if isinstance(value, float) else value


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="pages to run; all of docs and lab if none is given")
    parser.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--insert", action="store_true", help="add output blocks where there are none")
    asked = parser.parse_args(arguments)
    check, chosen, stale = asked.check, [page.resolve() for page in asked.pages], 0
    for page in chosen or sorted((ROOT / "docs").rglob("*.md")):
        for command, lines in commands(page):
            for line in not_printed(command, lines):
                stale += 1
                print(f"{os.path.relpath(page, ROOT)}: {command}\n    not: {line}")
    chosen = chosen or list(pages())
    for page in chosen:
        new = refreshed(page, draw=not check, insert=asked.insert)
        if new == page.read_text(encoding="utf-8"):
            continue
        stale += 1
        print(f"{'stale' if check else 'refreshed'}: {os.path.relpath(page, ROOT)}")
        if not check:
            page.write_text(new, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
