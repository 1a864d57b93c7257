"""Write docs/http-api.md from the table of routes. ``--check`` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from sartor.web.openapi import INTRODUCTION, curl
from sartor.web.routes import ROUTES, Route

PAGE = Path(__file__).resolve().parent.parent / "docs" / "http-api.md"

HEAD = f"""# HTTP API

*Generated from `src/sartor/web/routes.toml` by `tools/http_docs.py`.*

{INTRODUCTION}

Fields have the names of the Python API's arguments (several devices are `gpus`), and answers have the keys of `--json`
([json.md](json.md)). On a running server, `/api.html` lists every field of every request with type, default, meaning
and an example to copy.
`GET /openapi.json` is the OpenAPI 3.1 document with the schema of every answer. `GET /health` says whether the server
is up.
"""


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        return 0 if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text else 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    """The whole page: an example, then one line per request."""
    example = next(route for route in ROUTES if route.name == "estimate")
    lines = [HEAD, "```bash", curl(example), "```", "", "| request | answers | required |", "|---|---|---|"]
    return "\n".join([*lines, *map(_line, ROUTES)]) + "\n"


def _line(route: Route) -> str:
    required = ", ".join(f"`{field.name}`" for field in route.fields if field.required)
    return f"| `{route.method} {route.path}` | {route.summary} {route.about}".rstrip() + f" | {required} |"


if __name__ == "__main__":
    sys.exit(main())
