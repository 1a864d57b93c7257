"""What the documents point at is there: links between pages, headings, and the Python of the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "examples", "lab")
PAGES = sorted(
    [
        *REPO.glob("*.md"),
        *(page for folder in FOLDERS for suffix in ("md", "ipynb") for page in (REPO / folder).rglob(f"*.{suffix}")),
    ]
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """A page without its code, where brackets mean something else."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them: small letters, punctuation gone, hyphens for blanks."""
    heads = re.findall(r"^#+ +(.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPO)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.relative_to(REPO)} links to {target}"
        assert not anchor or there.suffix != ".md" or anchor in anchors(there), f"{page.relative_to(REPO)}: #{anchor}"


def test_every_page_of_the_docs_is_linked_from_another() -> None:
    linked = {
        (page.parent / target.partition("#")[0]).resolve() for page in PAGES for target in LINK.findall(prose(page))
    }
    folders = {path for path in linked if path.is_dir()}
    lost = [
        str(page.relative_to(REPO))
        for page in (REPO / "docs").rglob("*.md")
        if page not in linked and page.parent not in folders and page.name != "README.md"
    ]
    assert not lost, f"no page links to {', '.join(lost)}"


def test_the_readmes_python_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(REPO)
    blocks = re.findall(r"^```python\n(.*?)^```", (REPO / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()
