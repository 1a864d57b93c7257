"""What a model computes beyond its sizes: constants that change neither time nor memory, but the model that is trained.

They are carried beside the shape for those who write a launch: every price ignores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sartor.bounded import packaged_toml

Value = float | str | bool

_FAMILIES: dict[str, Mapping[str, Value]] = packaged_toml("model", "numerics.toml")
NEUTRAL = _FAMILIES.pop("neutral")
"""Every field by its name here, with the value a plain decoder has. Fields of unknown meaning have none."""
SAME = {
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu_tanh"),
    **dict.fromkeys(("swish", "swiglu"), "silu"),
    **dict.fromkeys(("squared_relu", "relu_squared"), "relu2"),
}
"""Activations by other names."""


@dataclass(frozen=True, slots=True)
class Numerics:
    """Values by the names of `NEUTRAL`; a name that is absent has its neutral value.

    ``compared`` is False where only the file's fields are known, not what its class does beside them.
    """

    values: Mapping[str, Value] = field(default_factory=dict)
    compared: bool = True

    def get(self, name: str) -> Value | None:
        """The value, the neutral one where nothing is said, None for a field without one."""
        return self.values.get(name, NEUTRAL.get(name))

    @property
    def unusual(self) -> dict[str, Value]:
        """What differs from a plain decoder."""
        return {name: value for name, value in self.values.items() if value != NEUTRAL.get(name)}


def family_numerics(family: str, said: Mapping[str, Value], activation: str) -> Numerics:
    """A family's own values, those that are ``said`` winning; the ``activation`` where the family has none of its
    own."""
    known = _FAMILIES.get(family)
    values = {"activation": activation, **(known or {}), **said}
    values["activation"] = SAME.get(str(values["activation"]), values["activation"])
    return Numerics(values=values, compared=known is not None)
