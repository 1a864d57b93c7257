"""Colours of the figures and the page: one set of names, a light and a dark value for each.

Series colours are Okabe and Ito's (Color Universal Design, 2008, jfly.uni-koeln.de/color), told apart under the
common colour vision deficiencies; its yellow and black, which vanish on one of the two grounds, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """What a figure is painted with; every value is a CSS colour."""

    ink: str
    muted: str
    grid: str
    surface: str
    panel: str
    line: str
    blue: str
    sky: str
    green: str
    vermillion: str
    orange: str
    purple: str
    grey: str

    @property
    def series(self) -> tuple[str, ...]:
        """Colours for unordered categories, the most telling apart first."""
        return (self.blue, self.orange, self.green, self.vermillion, self.sky, self.purple, self.grey)


LIGHT = Theme(
    ink="#1b1f24",
    muted="#57606a",
    grid="#e4e8ec",
    surface="#ffffff",
    panel="#f6f8fa",
    line="#d0d7de",
    blue="#0072b2",
    sky="#56b4e9",
    green="#009e73",
    vermillion="#d55e00",
    orange="#e69f00",
    purple="#cc79a7",
    grey="#8b949e",
)

DARK = Theme(
    ink="#e6e9ed",
    muted="#9aa4af",
    grid="#2b3138",
    surface="#14171b",
    panel="#1c2127",
    line="#363d46",
    blue="#2f8fd0",
    sky="#7cc8f2",
    green="#1fb58a",
    vermillion="#ea7a2a",
    orange="#eeb133",
    purple="#d991b9",
    grey="#7d8792",
)

CSS = Theme(**{field.name: f"var(--{field.name})" for field in fields(Theme)})
"""The page's figures name the colour and let the reader's light, dark or printed style decide its value."""


def css_variables(theme: Theme) -> str:
    """``--ink:#1b1f24;...`` for a CSS block."""
    return "".join(f"--{field.name}:{getattr(theme, field.name)};" for field in fields(Theme))


MEANS: Mapping[str, tuple[str, ...]] = {
    "blue": (
        *(
            "compute_s",
            "compute",
            "forward",
            "train",
            "prefill",
            "decode",
            "microbatches_s",
            "microbatches",
            "matmul",
            "matrix multiplications",
        ),
        *("stash_bytes", "activations", "arrays", "multiply arrays", "tp 1"),
    ),
    "orange": (
        *(
            "dp_exposed_s",
            "exposed data-parallel communication",
            "reduce gradients",
            "resync_s",
            "gradient reduction",
            "memory_bound",
        ),
        *("memory-bound kernels", "grad_bytes", "gradients", "private_buffers", "private buffers", "tp 8"),
        "all cores, alone",
    ),
    "purple": (
        *("tp_s", "tensor-parallel communication", "gather parameters", "exposed communication", "network"),
        *("param_bytes", "weights", "on-chip network", "tp 32"),
    ),
    "vermillion": (*("optimizer_s", "optimizer step", "optimizer_bytes", "optimizer", "links", "tp 16"),),
    "sky": (
        *(
            "pp_bubble_s",
            "pipeline bubble",
            "fill_s",
            "pipeline fill and drain",
            "weight gradient",
            "copies",
            "workspace_bytes",
            "workspace",
        ),
        *("lanes", "vector lanes", "tp 2", "one core"),
    ),
    "green": (
        *("pp_transfer_s", "pipeline transfers", "backward", "attention", "kv_cache_bytes", "global_buffer"),
        *("global buffer", "tp 4"),
    ),
    "ink": (
        "ep_s",
        "expert-parallel communication",
        "narrow weights",
        "convolutions",
        "memory_phys",
        "memory",
        "memory interfaces",
    ),
    "muted": ("cp_s", "context-parallel communication", "loss", "embedding tables", "context_bytes", "control"),
    "line": ("gaps",),
}
"""What a colour stands for, in every figure of the report, as PNG, and on the page: words, and fields' names. Grey is
for the rest: fixed costs, the allocator, what has no kind."""


def painted(theme: Theme, names: Iterable[str]) -> list[str]:
    """The colours of what is drawn, by `MEANS`."""
    by_name = {name: colour for colour, means in MEANS.items() for name in means}
    return [str(getattr(theme, by_name.get(name, "grey"))) for name in names]


def css_meanings() -> str:
    """``--of-compute-s:var(--blue);...``: `MEANS` for the page."""
    return "".join(f"--of-{slug(name)}:var(--{colour});" for colour, means in MEANS.items() for name in means)


def slug(name: str) -> str:
    """A name as part of a CSS variable's."""
    return re.sub("[^a-z0-9]+", "-", name.lower())
