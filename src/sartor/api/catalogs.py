"""The catalogues by name: their entries with every field and its source."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter

from sartor.errors import InputError
from sartor.json_types import JsonDict

_FILES = {
    "gpus": ("sartor.hardware.catalog", "GPUS.names", "gpu_entry"),
    "models": ("sartor.model.zoo", "model_names", "model_entry"),
    "clusters": ("sartor.hardware.cluster_catalog", "CLUSTERS.names", "cluster_entry"),
    "accelerators": ("sartor.hardware.accelerator_catalog", "ACCELERATORS.names", "accelerator_entry"),
    "spaces": ("sartor.read.space_file", "space_names", "space_entry"),
}
"""The module of each catalogue of files, and its functions of all names and of one entry."""
SHELVES = ("gpus", "models", "clusters", "rules", "accelerators", "spaces")


def catalog_entries(shelf: str, name: str | None = None) -> list[JsonDict]:
    """All entries of a catalogue, or the one with a name. Raises ``InputError``."""
    if shelf not in SHELVES:
        raise InputError("catalog", shelf, f"must be one of {', '.join(SHELVES)}")
    if shelf == "rules":
        from sartor.rules.shape import rule_entries

        return rule_entries(name)
    module, *functions = _FILES[shelf]
    names, entry = (attrgetter(function)(import_module(module)) for function in functions)
    return [entry(item) for item in ([name] if name else names())]
