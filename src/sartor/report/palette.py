"""Colours of the figures and the page: one set of names, with a light and a dark value for each.

Series colours are Okabe and Ito's (Color Universal Design, 2008, jfly.uni-koeln.de/color), distinguishable under the
common colour vision deficiencies; its yellow and black, which vanish on a light or dark background, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from sartor.bounded import packaged_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class Theme:
    """The colours of a figure; every value is a CSS colour."""

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
        """Colours for unordered categories, the most distinct first."""
        return (self.blue, self.orange, self.green, self.vermillion, self.sky, self.purple, self.grey)


_FILE = packaged_toml("report", "palette.toml")
LIGHT, DARK = Theme(**_FILE["light"]), Theme(**_FILE["dark"])
CSS = Theme(**{field.name: f"var(--{field.name})" for field in fields(Theme)})
"""Figures on a page name their colours, so that the reader's light, dark or print style sets the values."""


def css_variables(theme: Theme) -> str:
    """``--ink:#1b1f24;...`` for a CSS block."""
    return "".join(f"--{field.name}:{getattr(theme, field.name)};" for field in fields(Theme))


MEANS: Mapping[str, Sequence[str]] = _FILE["means"]
"""What each colour stands for, by words and field names."""


def painted(theme: Theme, names: Iterable[str]) -> list[str]:
    """The colours of these names, from `MEANS`."""
    by_name = {name: colour for colour, means in MEANS.items() for name in means}
    return [str(getattr(theme, by_name.get(name, "grey"))) for name in names]


def css_meanings() -> str:
    """``--of-compute-s:var(--blue);...``: `MEANS` for the page."""
    return "".join(f"--of-{slug(name)}:var(--{colour});" for colour, means in MEANS.items() for name in means)


def slug(name: str) -> str:
    """A name as used within a CSS variable."""
    return re.sub("[^a-z0-9]+", "-", name.lower())
