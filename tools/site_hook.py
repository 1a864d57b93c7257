"""Hook of mkdocs.yml: links that leave docs/ lead to the repository, links to folders to their README, and one page
has the Python API.

``[project.urls]`` of pyproject.toml (or ``URL=https://... make site``) says where the repository is; without it such
links are plain text.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any
from urllib.parse import urlsplit

DOCS = Path(__file__).resolve().parents[1] / "docs"
LINK = re.compile(r"(?<!!)\[([^\]\[]+)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
API = "# Python API\n\n" + "\n".join(
    f"::: sartor.api.{name}\n    options: {{heading_level: 2, members_order: source}}\n"
    for name in ("models", "shapes", "plans", "designs", "servers", "diagnoses", "logs", "single_operators", "grids")
)


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    files.append(File.generated(config, "api.md", content=API))
    return files


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Links of a notebook, which is rendered without them being looked at."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    return re.sub(r'href="\.\./([\w/-]+?)(?:/README)?\.md"', r'href="../../\1/"', html)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    folder = PurePosixPath(page.file.src_uri).parent

    def target(link: re.Match[str]) -> str:
        words, path, anchor = link[1], link[2], link[3] or ""
        whole = normpath(f"docs/{folder}/{path}")
        if whole.startswith("docs/") and not whole.startswith("docs/schemas"):
            readme = DOCS.parent / whole / "README.md"
            return f"[{words}]({path.rstrip('/')}/README.md{anchor})" if readme.exists() else link[0]
        return f"[{words}]({config.repo_url}/blob/main/{whole}{anchor})" if config.repo_url else words

    if config.repo_url:
        action = "uses: " + urlsplit(config.repo_url).path.strip("/")  # GitHub's OWNER/REPOSITORY
        markdown = markdown.replace("uses: URL-OF-THIS-REPOSITORY", action)
        markdown = markdown.replace("URL-OF-THIS-REPOSITORY", config.repo_url)
    return LINK.sub(target, markdown)
