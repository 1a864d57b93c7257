"""Parameters outside the text layers of which only the sizes are known: towers, projectors, codecs, heads.

``tensor_tables.json`` gives for each model type the number of parameters that the published class has outside its main
stack's layers, as polynomials of config fields (``c * hidden_size**2 * num_hidden_layers + ...``), one for the towers
and one for the text. ``lab/tensor_tables.py`` derives them from the shapes of the class's tensors and checks them on
other configs. Fields that change the structure are guards: with another value the count is a guess.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from sartor.json_types import JsonDict
from sartor.model.counts import count_params, layer_params, run_sets
from sartor.model.layer import Vectors
from sartor.model.shape import Stack, TransformerShape
from sartor.read.config_text import packaged_json
from sartor.read.fields import Fields

TIED = "tie_word_embeddings"


def is_tabled(model_type: str, architecture: str = "") -> bool:
    """Whether the table has the parameters outside the text layers of a model type, or of one of its classes."""
    types = packaged_json("tensor_tables.json")["model_types"]
    return model_type in types or f"{model_type}:{architecture}" in types


def without_sections(f: Fields) -> bool:
    """Whether a composite model's file has sizes at its top level, and no section of a text model or a tower."""
    sections = any(isinstance(x, dict) and name.endswith("_config") for name, x in f.raw.items() if name not in BESIDE)
    return bool(f.defaults.nested) and {"hidden_size", "num_hidden_layers"} <= f.raw.keys() and not sections


BESIDE = ("quantization_config", "compression_config")
"""Sections that describe no part of the model."""


def with_table(f: Fields, shape: TransformerShape) -> TransformerShape:
    """The text's shape with the towers of its model type and the text's parameters outside the layers added."""
    if without_sections(f):
        return shape
    types = packaged_json("tensor_tables.json")["model_types"]
    entry = types.get(f"{f.model_type}:{f.architecture}") or types[f.model_type]
    values = {path: _value_at(f, path, default) for path, default in entry["defaults"].items()}
    if entry["tower"]:
        _check_guards(f, entry, "tower")
        towers = Vectors(name="towers", fixed=_evaluate(f, entry["tower"], values))
        stack = Stack(name="towers", hidden_size=shape.hidden_size, runs=(), vectors=(towers,), is_text=False, tokens=0)
        shape = replace(shape, stacks=(*(s for s in shape.stacks if s.is_text), stack))
    if entry["text"]:
        _check_guards(f, entry, "text")
        main = shape.main
        layers = sum(int(run_sets(run)) * int(layer_params(run.layer, main.hidden_size)) for run in main.runs)
        counted = count_params(shape)
        rest = _evaluate(f, entry["text"], values) + layers - int(counted.text if main.is_text else counted.total)
        rest += _own_head(f, entry, shape)
        if rest:
            shape = replace(shape, vectors=(*shape.vectors, Vectors(name="beside_the_layers", fixed=rest)))
    return shape


def _own_head(f: Fields, entry: JsonDict, shape: TransformerShape) -> int:
    """Parameters that untying the head adds to the table's count (negative for tying it)."""
    guard, value = entry["guards"]["text"].get(TIED), f.given(TIED)
    if not shape.lm_head or not isinstance(guard, bool) or not isinstance(value, bool):
        return 0
    width = shape.hidden_size if shape.embedding_size is None else shape.embedding_size
    return (int(guard) - int(value)) * int(shape.vocab_size) * int(width)


def _evaluate(f: Fields, terms: list[Any], values: dict[str, int]) -> int:
    """The polynomial's value; a fractional result means that the sizes are inconsistent."""
    total = Fraction(0)
    for coefficient, powers in terms:
        term = Fraction(coefficient)
        for name, power in powers.items():
            first, _, second = name.partition("//")
            if 0 in ((values[second],) if second else (values[first],)) and (second or power < 0):
                raise f.refuse(second or first, 0, "must be a positive integer")
            term *= Fraction(values[first] // values[second] if second else values[first]) ** power
        total += term
    if total.denominator != 1:
        f.ledger.guess(f"the sizes beside the text layers of {f.model_type} do not divide evenly: rounded")
    return round(total)


def _value_at(f: Fields, path: str, default: int) -> int:
    """A size by its path (``vision_config.hidden_size``); a pair of equal numbers counts as one."""
    *folders, name = path.split(".")
    for folder in folders:
        inner = f.nested(folder)
        if inner is None:
            f.ledger.assume(f"{f.path}{folder} is not in the file: the published defaults are taken")
            return default
        f = inner
    value = f.given(name)
    if isinstance(value, list) and value and all(x == value[0] for x in value):
        f = replace(f, raw={**f.raw, name: value[0]})
    size = f.optional_size(name, least=0)
    return default if size is None else size


def _check_guards(f: Fields, entry: JsonDict, kind: str) -> None:
    """Record which fields differ from those that the table holds for."""
    for path, guard in entry["guards"][kind].items():
        value = _given(f, path)
        if value is not None and value != guard and path != TIED:
            f.ledger.guess(
                f"{path}={value!r:.40} differs from the configs that the sizes of {f.model_type} are known from"
            )
    for path, guard in entry["types"].items():
        value = _given(f, f"{path}.model_type")
        is_text = path == "text_config"
        if value is not None and value != guard and is_text is (kind == "text"):
            f.ledger.guess(f"{path}.model_type={value!r:.40} differs from {guard}, the one whose sizes are known")


def _given(f: Fields, path: str) -> Any:
    value: object = f.raw
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value
