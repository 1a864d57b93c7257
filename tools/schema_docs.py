"""Write the JSON schema of every command under docs/schemas/: ``python tools/schema_docs.py``."""

from __future__ import annotations

import json
from pathlib import Path

from sartor.answers.commands import COMMANDS, VERSION, command_schema

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"


def pages() -> dict[str, str]:
    """Text by file name: ``plan.1.json``."""
    return {f"{name}.{VERSION}.json": json.dumps(command_schema(name), indent=1) + "\n" for name in COMMANDS}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
    print(f"wrote {len(pages())} schemas to {FOLDER}")


if __name__ == "__main__":
    main()
