"""Names of the published model classes: whether a class exists, and the default class of a model type.

``published_classes.json`` holds names only; ``lab/class_defaults.py`` writes it from the release it names.
"""

from __future__ import annotations

from functools import cache

from sartor.read.config_text import packaged_json


def is_published_class(name: str) -> bool:
    """Whether the release has a model class of that name."""
    return name in _names()


def default_class(model_type: str) -> str:
    """The class to build for a file of ``model_type`` that names none; ``""`` for an unknown type."""
    return str(packaged_json("published_classes.json")["default"].get(model_type, ""))


def types_of_class(name: str) -> list[str]:
    """The model types whose default class has that name."""
    return [each for each, built in packaged_json("published_classes.json")["default"].items() if built == name]


@cache
def _names() -> frozenset[str]:
    return frozenset(
        stem + end for stem, ends in packaged_json("published_classes.json")["classes"].items() for end in ends
    )
