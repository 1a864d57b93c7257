"""torchtitan's named models (flavors) and the values of its named configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from sartor.bounded import packaged_toml
from sartor.json_types import JsonDict
from sartor.model.numerics import Numerics, Value
from sartor.model.shape import TransformerShape
from sartor.model.zoo import load_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A torchtitan model, with the zoo's name for the same sizes, and the numerics in which it differs."""

    module: str
    flavor: str
    zoo: str
    numerics: Mapping[str, Value] = field(default_factory=dict)

    @property
    def shape(self) -> TransformerShape:
        return load_model(self.zoo)

    @property
    def computes(self) -> Numerics:
        """What the flavor computes beyond its sizes."""
        known = self.shape.numerics
        return Numerics(values={**(known.values if known else {}), **self.numerics})


def flavor_of(shape: TransformerShape) -> Flavor | None:
    """The torchtitan model of the same sizes, or None."""
    sizes = shape.fields()
    for each in flavors():
        own = each.shape
        if own.fields() == sizes and own.tied_embeddings is shape.tied_embeddings:
            return each
    return None


def named_flavor(module: str, flavor: str) -> Flavor | None:
    """The model with a name such as ``("llama3", "8B")``; the suffix of fine-tuning recipes is ignored."""
    bare = module.removesuffix("_ft")
    return next((x for x in flavors() if (x.module, x.flavor.lower()) == (bare, flavor.lower())), None)


def named_config(module: str, config: str) -> tuple[str, JsonDict] | None:
    """(flavor, values) of a named configuration, ``--module llama3 --config llama3_8b``."""
    found = _table()["config"].get(config)
    if found is None or not config.startswith(module):
        return None
    return str(found["flavor"]), dict(found["values"])


def config_names(module: str) -> list[str]:
    """Configurations of a module whose values are known."""
    return [name for name in _table()["config"] if name.startswith(module)]


@cache
def flavors() -> tuple[Flavor, ...]:
    """Every torchtitan model that is in the zoo."""
    return tuple(Flavor(**row) for row in _table()["flavor"])


@cache
def _table() -> JsonDict:
    return packaged_toml("launch", "torchtitan_flavors.toml")
