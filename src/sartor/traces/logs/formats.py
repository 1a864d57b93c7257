"""What the trainers print (``formats.toml``): patterns of numbers with their units, and facts about the plan."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sartor.bounded import packaged_toml
from sartor.hardware.catalog import GPUS
from sartor.json_types import JsonMap
from sartor.units import GIB

NUMBER = r"([0-9][0-9,]{0,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?)"
HUMAN = NUMBER + r"([KMGTB]?)"
"""A number with a suffix such as K or M, as nanotron prints."""
MEGABYTES = 2.0**20
TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One number in a line: its quantity, pattern and unit in SI."""

    of: str
    """``step_s``, ``steps_per_s``, ``tokens_per_s``, ``device_tokens_per_s``, ``samples_per_s``, ``flops_per_s``,
    ``allocated_bytes``, ``reserved_bytes``, or a whole-number fact (``global_batch_size``)."""
    where: re.Pattern[str]
    unit: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFormat:
    """How one trainer prints its steps."""

    trainer: str
    title: str
    marks: tuple[str, ...]
    """Words that every step line contains."""
    iteration: re.Pattern[str] | None
    """None: every line stands for a whole run."""
    readings: tuple[Reading, ...]
    beside: tuple[Reading, ...] = ()
    """Numbers on lines of their own that belong to the step before."""
    counts_samples: bool = False
    """Whether the iteration counts samples."""
    clock: re.Pattern[str] | None = None
    """Time stamp of a line, for logs in which only this tells how long steps take."""
    begins: str = ""
    """Words on a line that every launch prints once, before its first step."""
    units: tuple[str, ...] = field(default_factory=tuple)


_FILE = packaged_toml("traces/logs", "formats.toml")
UNITS = {"ms": 1e-3, "MiB": MEGABYTES, "GiB": GIB, "GB": 1e9, "tera": TERA, "percent_of_a100": 3.12 * TERA}
"""Units of ``formats.toml`` in SI; nanoGPT prints shares of an A100's peak, whatever the GPU."""


def _format(row: JsonMap) -> LogFormat:
    """A row of ``formats.toml``."""
    texts = {name: tuple(row[name]) for name in ("marks", "units")}
    patterns = {name: re.compile(row[name]) if name in row else None for name in ("iteration", "clock")}
    readings = {name: tuple(map(_reading, row.get(name, ()))) for name in ("readings", "beside")}
    return LogFormat(**{**row, **texts, **patterns, **readings})


def _reading(row: JsonMap) -> Reading:
    number = HUMAN if row.get("number") == "human" else NUMBER
    where = row["before"] + r"\s{0,12}" + number + row.get("after", "")
    return Reading(of=row["of"], where=re.compile(where), unit=UNITS.get(row.get("unit", ""), 1.0))


FORMATS = tuple(map(_format, _FILE["format"]))
MEGATRON = next(form for form in FORMATS if form.title == "Megatron-LM")

RANK = re.compile(r"^\s{0,4}(?:\[(\d{1,6})\]:|(\d{1,6}): )|^.{0,120}?\[(?:default|rank)(\d{1,6})\]:")
"""The rank that a launcher puts before each line; of times and rates only the lowest one's lines count."""
NO_NUMBER = re.compile(r"loss['\"]?\s{0,3}[:=]\s{0,12}'?nan\b|nan iterations:\s{0,8}[1-9]", re.IGNORECASE)
"""A step line whose loss is not a number."""


DUMPED = re.compile(r"\b([a-zA-Z]\w{1,60}) \.{3,60} (.{1,400})$")
"""A line of Megatron's dump of arguments: ``  hidden_size .......... 4096``, behind any prefix."""

_FACTS: Mapping[str, Sequence[str]] = _FILE["facts"]
_WORDS: Mapping[str, Mapping[str, str]] = _FILE["words"]
_AXES_OF_NAME = {"pp": "pp", "tp": "tp", "cp": "cp", "ep": "ep", "mbs": "microbatch_size", "gbs": "global_batch_size"}
_NAMED = re.compile(r"(?<![a-zA-Z0-9])(pp|tp|cp|ep|mbs|gbs|seq)(\d{1,9})(?![0-9])")
_NODES = re.compile(r"(?<![a-zA-Z0-9])(\d{1,5})n(\d{1,3})g(?![a-zA-Z0-9])")
LEAST_NAMED = 3
"""Least number of parts in the name of a configuration, such as ``pp4-cp1-ep8-mbs1``."""
_MESH = re.compile(r"device mesh with \[([^\]]{1,200})\], \[([^\]]{1,200})\]")
_PARALLELISM = re.compile(r"device mesh with parallelism: ((?:\w{1,20}=\d{1,7}(?:, )?){1,12})")


def arguments_in(text: str) -> dict[str, str]:
    """The dump of Megatron's arguments."""
    matches = (DUMPED.search(line) for line in text.splitlines() if " ..." in line)
    return {match[1]: match[2].strip() for match in matches if match}


def facts_in(text: str) -> dict[str, int | str]:
    """Facts about plan and job in the lines before the first step."""
    facts: dict[str, int | str] = {}
    for line in text.splitlines():
        facts |= _configuration_name(line)
    facts |= _mesh(text)
    for name, patterns in _FACTS.items():
        for pattern in patterns:
            if match := re.search(pattern, text, re.MULTILINE):
                facts[name] = int(match[1].replace(",", ""))
                break
    for name, words in _WORDS.items():
        stated_word = next((word for pattern, word in words.items() if re.search(pattern, text)), None)
        if stated_word:
            facts[name] = stated_word
    return facts


def gpu_named(text: str) -> str | None:
    """The catalogue's name of the device that a driver calls ``text``; None if it is none with a single version."""
    single = {name.replace("_", "[ _]"): name for name in GPUS.names() if "_" not in name or name.startswith("rtx")}
    names = {**_WORDS["gpu"], **{rf"(?i)\b{words}\b": name for words, name in single.items()}}
    return next((name for pattern, name in names.items() if re.search(pattern, text)), None)


def _configuration_name(line: str) -> dict[str, int | str]:
    """``8n8g-h100/pp4-cp1-ep8-mbs1-gbs1024-seq4096``."""
    parts = dict(_NAMED.findall(line))
    if len(parts) < LEAST_NAMED:
        return {}
    facts: dict[str, int | str] = {_AXES_OF_NAME.get(name, "seq_len"): int(value) for name, value in parts.items()}
    if nodes := _NODES.search(line):
        facts["num_devices"] = int(nodes[1]) * int(nodes[2])
    return facts


def _mesh(text: str) -> dict[str, int | str]:
    """torchtitan's device mesh: ``Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]``, and since 2025
    ``Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1``, whose experts' axes
    lie inside the others. The former kind leaves out degrees of 1."""
    if match := _PARALLELISM.search(text):
        mesh = {name: int(size) for name, size in re.findall(r"(\w{1,20})=(\d{1,7})", match[1])}
        return {**_degrees(mesh), "num_devices": math.prod(mesh.get(name, 1) for name in AXES)}
    match = _MESH.search(text)
    if not match:
        return {}
    names = re.findall(r"\w{1,20}", match[1])
    mesh = dict(zip(names, map(int, re.findall(r"\d{1,7}", match[2])), strict=False))
    whole = all(name in AXES for name in names)
    if not whole:
        return _degrees(mesh)
    return {"tp": 1, "pp": 1, "cp": 1, **_degrees(mesh), "num_devices": math.prod(mesh.values())}


AXES = ("dp_shard", "dp_replicate", "dp", "tp", "pp", "cp")
"""Axes of a mesh whose product is the number of devices."""


def _degrees(mesh: Mapping[str, int]) -> dict[str, int | str]:
    return {name: mesh[name] for name in ("tp", "pp", "cp", "ep") if name in mesh}
