"""Releases of trainers: which one a launch is written for (``--trainer-version``), and its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sartor.errors import InputError
from sartor.launch.model_fields import Argument, first_release
from sartor.launch.plan import LaunchKind

NEWEST = {LaunchKind.MEGATRON: "0.16.1", LaunchKind.TORCHTITAN: "0.3.0", LaunchKind.MEGATRON_BRIDGE: "0.3.1"}
"""Releases on PyPI as of 2026-11-23. The fields written for DeepSpeed and accelerate never changed."""
PYTHON_CONFIGS = (0, 3)
"""torchtitan's first release with Python configurations; earlier ones use TOML."""


def release_of(kind: LaunchKind, text: str) -> tuple[int, ...]:
    """``0.14``, ``v0.14.0`` or ``core_v0.14`` as numbers; the newest if empty. Raises `InputError`."""
    if text and kind not in NEWEST:
        known = ", ".join(each.value for each in NEWEST)
        raise InputError("trainer_version", text, f"{kind.title}'s files are the same in all its versions", known)
    found = re.fullmatch(r"(?:core_)?[vr]?(\d{1,4}(?:\.\d{1,4}){0,3})", (text or NEWEST.get(kind, "0")).strip())
    if not found:
        raise InputError("trainer_version", text, "must be a version", NEWEST[kind])
    return tuple(int(part) for part in found[1].split("."))


def check_arguments(kind: LaunchKind, arguments: Iterable[Argument], version: str) -> None:
    """Check that the given version has every argument. Raises `InputError`."""
    if not version:
        return
    asked = release_of(kind, version)
    for words in arguments:
        first = first_release(kind, words[0])
        if first and first != "0.5" and asked[:2] < release_of(kind, first)[:2]:
            must = f"{kind.title} has {words[0]} since {first}"
            raise InputError("trainer_version", version, must, f"{first} or newer")
