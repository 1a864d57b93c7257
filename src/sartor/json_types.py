"""What JSON objects are in annotations; nothing heavier is loaded for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonDict: TypeAlias = dict[str, Any]
"""A JSON object or TOML table that is being written."""
JsonMap: TypeAlias = Mapping[str, Any]
"""One that is read."""
