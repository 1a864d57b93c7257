"""Write docs/http-api.md from the table of routes. ``--check`` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "http-api.md"


def main() -> int:
    from sartor.web.api_page import api_markdown

    text = api_markdown()
    if "--check" in sys.argv:
        return 0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
