"""Numerics of a model: constants that don't affect time or memory, but the model that is trained.

They are carried with the shape for writing launch files; prices ignore them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sartor.bounded import packaged_toml

Value = float | str | bool

_FAMILIES: dict[str, Mapping[str, Value]] = packaged_toml("model", "numerics.toml")
NEUTRAL = _FAMILIES.pop("neutral")
"""Every field with its value in a plain decoder. Fields without a known meaning have no value."""
SAME = {
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh"),
    **dict.fromkeys(("swish", "swiglu"), "silu"),
    **dict.fromkeys(("squared_relu", "relu_squared"), "relu2"),
}
"""Synonyms of activations."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """Values by the names of `NEUTRAL`; a name that is absent has its neutral value.

    ``compared`` is False if only the file's fields are known, not what the model's class does besides.
    """

    values: Mapping[str, Value] = field(default_factory=dict)
    compared: bool = True

    def get(self, name: str) -> Value | None:
        """The value, by default the neutral one; None for a field without one."""
        return self.values.get(name, NEUTRAL.get(name))

    @property
    def unusual(self) -> dict[str, Value]:
        """Values that differ from a plain decoder's."""
        return {name: value for name, value in self.values.items() if value != NEUTRAL.get(name)}


def family_numerics(family: str, stated: Mapping[str, Value], activation: str) -> Numerics:
    """A family's values, overridden by those ``said``; ``activation`` applies if the family has none of its own."""
    defaults = _FAMILIES.get(family)
    values = {"activation": activation, **(defaults or {}), **stated}
    values["activation"] = SAME.get(str(values["activation"]), values["activation"])
    return Numerics(values=values, compared=defaults is not None)
