"""Published models by name: one TOML file with sources per model.

The files state every size and option (norms, biases, windows, experts) in glossary words, so that the counts follow
from the file; ``[params]`` has the published totals they must match.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from functools import cache
from pathlib import Path

from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.model.shape import TransformerShape
from sartor.model.zoo.build import build_shape

ENTRIES = Path(__file__).parent
ALIASES = ENTRIES / "aliases.toml"


def load_model(name: str) -> TransformerShape:
    """The shape of a zoo model. Case, spaces, ``-``, ``_``, a trailing ``-hf`` and an owner are ignored.

    Raises ``InputError`` with the nearest names for an unknown model.

    >>> load_model("Llama 3.1 8B").hidden_size
    4096
    """
    return build_shape(model_entry(name))


def model_names() -> tuple[str, ...]:
    """Every model of the zoo by its slug, sorted as people would: by family, then size."""
    return tuple(sorted((path.stem for path in _entries().values()), key=_natural))


def model_aliases() -> dict[str, str]:
    """Other names -> slug."""
    return {alias: slug for slug, aliases in _aliases().items() for alias in aliases}


def model_entry(name: str) -> JsonDict:
    """The entry as it is in the file, with sources, notes and published counts, as in ``sartor catalog models``."""
    with _find(name).open("rb") as file:
        return tomllib.load(file)


def canonical(name: str) -> str:
    """A name without owner, case, separators and the suffix ``-hf``."""
    bare = re.sub(r"[\s_\-]hf$", "", name.lower().strip().rsplit("/", 1)[-1])
    squeezed = re.sub(r"[\s_\-()]+", "", bare)
    return re.sub(r"^(metallama|llamav?)(?=\d)", "llama", squeezed)


def _find(name: str) -> Path:
    entries, other_names = _entries(), {canonical(alias): slug for alias, slug in model_aliases().items()}
    search_key = canonical(name)
    search_key = canonical(other_names.get(search_key, search_key))
    if search_key in entries:
        return entries[search_key]
    near = difflib.get_close_matches(search_key, list(entries), n=4, cutoff=0.5)
    raise InputError(
        "model",
        name,
        "not in the zoo (sartor catalog models); a path to a config.json works too",
        ", ".join(entries[key].stem for key in near),
    )


@cache
def _entries() -> dict[str, Path]:
    return {canonical(path.stem): path for path in ENTRIES.glob("*.toml") if path != ALIASES}


@cache
def _aliases() -> dict[str, tuple[str, ...]]:
    with ALIASES.open("rb") as file:
        return {slug: tuple(aliases) for slug, aliases in tomllib.load(file).items()}


def _natural(slug: str) -> list[tuple[float, str]]:
    """Numbers compare as numbers, millions before billions: 70m < 1b < 2.8b < 12b."""
    words = re.findall(r"\d+(?:\.\d+)?[mbt]?\b|[^\d]+|\d+", slug)
    return [_number(word) for word in words]


def _number(word: str) -> tuple[float, str]:
    if not word[0].isdigit():
        return (-1.0, word)
    scale = {"m": 1e6, "b": 1e9, "t": 1e12}.get(word[-1], 1.0)
    return (float(word.rstrip("mbt")) * scale, word)
