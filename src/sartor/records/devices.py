"""Devices by the labels that measurement tables use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.records.rows import Unexpressed

Devices = Mapping[str, Gpu]
"""A user's own datasheets, by the label used in tables."""


def device_of(name: str, own_devices: Devices) -> Gpu:
    """A device by a table's label; the user's own datasheets take precedence. Raises ``Unexpressed``."""
    return own_devices[name] if name in own_devices else known(name)


@cache
def known(name: str) -> Gpu:
    """A device by a table's label, or by a path to its datasheet. Raises ``Unexpressed``, naming the nearest match, for
    a label the catalogue lacks."""
    try:
        return load_gpu(name if name.endswith(".toml") else _spelled(name))
    except InputError as error:
        nearest = f"; nearest: {error.nearest}" if error.nearest else ""
        raise Unexpressed(f"gpu {name[:40]}: not in the catalogue{nearest}") from None


def _spelled(name: str) -> str:
    """A table's label in the catalogue's spelling, without the memory size or extra word that some add:
    ``GB200-186GB``, ``Tesla_T4``, ``NVIDIA GH200 SXM``, ``RTX-PRO-6000-Blackwell-Server-96GB``, ``MI250x-one-GCD``."""
    try:
        return load_gpu(name).name
    except InputError:
        plain = re.sub(r"[ _-]+[0-9]+ ?GB$|[ _-]one(?=[ _-]GCD)|(?<=[GBH]200) SXM$|(?<=6000)[ _-]Blackwell", "", name)
        return re.sub(r"^Tesla[ _-]", "", plain)
