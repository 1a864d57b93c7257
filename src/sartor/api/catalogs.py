"""The catalogues by name: their entries with every field and its source."""

from __future__ import annotations

from importlib import import_module

from sartor.errors import InputError
from sartor.json_types import JsonDict

_FILES = {
    "gpus": ("sartor.hardware.catalog", "gpu"),
    "models": ("sartor.model.zoo", "model"),
    "clusters": ("sartor.hardware.cluster_catalog", "cluster"),
    "accelerators": ("sartor.hardware.accelerator_catalog", "accelerator"),
    "spaces": ("sartor.read.space_file", "space"),
}
"""The module of each catalogue of files, and the word before ``_names`` and ``_entry`` in its functions."""
SHELVES = ("gpus", "models", "clusters", "rules", "accelerators", "spaces")


def catalog_entries(shelf: str, name: str | None = None) -> list[JsonDict]:
    """All entries of a catalogue, or the one with a name. Raises ``InputError``."""
    if shelf not in SHELVES:
        raise InputError("catalog", shelf, f"must be one of {', '.join(SHELVES)}")
    if shelf == "rules":
        from sartor.rules.shape import rule_entries

        return rule_entries(name)
    path, word = _FILES[shelf]
    module = import_module(path)
    entry = getattr(module, f"{word}_entry")
    return [entry(item) for item in ([name] if name else getattr(module, f"{word}_names")())]
