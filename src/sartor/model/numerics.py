"""What a model computes beyond its sizes: constants that change neither time nor memory, but the model that is trained.

They are carried beside the shape for those who write a launch: every price ignores them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

Value = float | str | bool

NEUTRAL: Mapping[str, Value] = {
    "activation": "",
    "attention_multiplier": 1.0,
    "attention_scale": 0.0,
    "attention_softcap": 0.0,
    "aux_loss": 0.0,
    "aux_loss_per_sequence": False,
    "embedding_multiplier": 1.0,
    "glu_limit": 0.0,
    "glu_offset": 0.0,
    "logit_scale": 1.0,
    "logit_softcap": 0.0,
    "norm_eps": 1e-5,
    "norm_order": "before",
    "norm_zero_centered": False,
    "position_bias": "",
    "qk_l2_norm": False,
    "qkv_clip": 0.0,
    "query_scale": 0.0,
    "residual_multiplier": 1.0,
    "rope_beta_fast": 32.0,
    "rope_beta_slow": 1.0,
    "rope_high_freq_factor": 4.0,
    "rope_interleaved": False,
    "rope_layers": "",
    "rope_local_theta": 0.0,
    "rope_low_freq_factor": 1.0,
    "rope_mscale": 1.0,
    "rope_mscale_all_dim": 0.0,
    "rope_theta": 10000.0,
    "rope_truncate": True,
    "rope_type": "",
    "router_bias": False,
    "router_groups": 1,
    "router_jitter": 0.0,
    "router_method": "",
    "router_normalized": True,
    "router_scale": 1.0,
    "router_score": "softmax",
    "router_topk_groups": 1,
    "z_loss": 0.0,
}
"""Every field by its name here, with the value a plain decoder has (Vaswani et al. 2017; Shazeer et al. 2017), or that
a rotary scaling has where nothing is said. ``rope_factor`` and fields of unknown meaning have none."""
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
    known = _families().get(family)
    values = {"activation": activation, **(known or {}), **said}
    values["activation"] = SAME.get(str(values["activation"]), values["activation"])
    return Numerics(values=values, compared=known is not None)


@cache
def _families() -> Mapping[str, Mapping[str, Value]]:
    return tomllib.loads(files("sartor.model").joinpath("numerics.toml").read_text(encoding="utf-8"))
