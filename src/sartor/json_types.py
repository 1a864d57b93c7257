"""Type annotations for JSON objects, in a module that imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

JsonDict: TypeAlias = dict[str, Any]
"""A JSON object or TOML table that is written."""
JsonMap: TypeAlias = Mapping[str, Any]
"""A JSON object or TOML table that is only read."""
