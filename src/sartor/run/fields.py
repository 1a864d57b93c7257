"""The question as one record, every fact with its origin; and the table of its fields, from which every command, the
Python interface, HTTP and the JSON schemas are made.

A run is asked with the facts that a user states, and completed (`sartor.ask.complete`) by rules, by a trainer's usual
values and by the search; an answer carries the finished run, so that it never says more than was asked.

`RunOptions` types the keywords (editors complete them); `FIELDS` has one row each, in the order of help pages: axes of
the plan from `sartor.model.plan`, the others from ``fields.toml``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

from sartor.bounded import packaged_toml
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.json_types import JsonMap
from sartor.model.plan import AXES, AxisFields, Size, Switch, Word
from sartor.options import Panel, RunField, Unit
from sartor.units import Array

T = TypeVar("T")


class Origin(Enum):
    """Where a value comes from, the strongest first."""

    STATED = "stated"
    """By the user: an option, a file, a log."""
    IMPLIED = "implied"
    """By a rule from stated values: a trainer pads the vocabulary."""
    USUAL = "usual"
    """By a trainer's record, or what such runs usually have."""
    SEARCHED = "searched"
    """By the search: the fastest that fits."""
    OPEN = "open"
    """Nothing says it: the answer holds for each of its plausible values, or says for which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value(Generic[T]):
    """A fact of a run."""

    value: T
    origin: Origin
    source: str = ""
    """The option, file and line, rule or record it comes from, in words."""
    alternatives: tuple[T, ...] = ()
    """Of a value that was not stated: other plausible ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Facts of a run by the name of their field (`sartor.run.fields`); a field that is absent is open."""

    facts: Mapping[str, Value[Any]]

    @classmethod
    def stated(cls, source: str = "option", /, **values: Any) -> Run:
        """The run of which these values are stated; None is not a value."""
        return cls(facts={}).with_(Origin.STATED, source, **values)

    def with_(self, origin: Origin, source: str = "", /, **values: Any) -> Run:
        """The run with these values too, all of one origin; None is not a value."""
        also = {
            name: Value(value=value, origin=origin, source=source)
            for name, value in values.items()
            if value is not None
        }
        return replace(self, facts={**self.facts, **also})

    def among(self, name: str, *alternatives: Any) -> Run:
        """The run with the other plausible values of a field that was not stated."""
        return replace(self, facts={**self.facts, name: replace(self.facts[name], alternatives=alternatives)})

    def without(self, *names: str) -> Run:
        """The run with these fields open again."""
        return replace(self, facts={name: fact for name, fact in self.facts.items() if name not in names})

    def get(self, name: str, default: Any = None) -> Any:
        """A field's value; ``default`` where it is open."""
        fact = self.facts.get(name)
        return default if fact is None else fact.value

    def __contains__(self, name: str) -> bool:
        return name in self.facts

    def __iter__(self) -> Iterator[str]:
        return iter(self.facts)

    def origin(self, name: str) -> Origin:
        """Where a field's value comes from; open where it has none."""
        return self.facts[name].origin if name in self.facts else Origin.OPEN

    def states(self, name: str) -> bool:
        """Whether the user stated a field."""
        return self.origin(name) is Origin.STATED

    @property
    def own_margin(self) -> bool:
        """Whether the user stated what stays free of memory, as a share or as the probability that a plan fits."""
        return self.states("headroom") or self.states("fit_probability")

    def of_origin(self, *origins: Origin) -> dict[str, Any]:
        """The values of these origins by field."""
        return {name: fact.value for name, fact in self.facts.items() if fact.origin in origins}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Another plausible value of something not stated, and the verdict that it would turn."""

    field: str
    value: Any
    verdict: str
    """What would be said with this value, in words."""
    figures: Mapping[str, float]
    """Key figures with this value."""
    usual: str = ""
    """The value that was taken instead; empty where the verdict says it."""
    settled_by: str = ""
    """What would state it."""

    @property
    def of_memory(self) -> bool:
        """Whether the verdict is about memory."""
        return not {"peak_bytes", "change_bytes"}.isdisjoint(self.figures)

    @property
    def of_arguments(self) -> bool:
        """Whether the field is a variable of a script, which may hold any arguments, or a recipe that is only named."""
        return self.field.startswith("$")


OF_RECIPE = "$recipe "
"""Begins the field of a recipe that a file only names."""


def arguments_unsaid(field: str) -> str:
    """``$EXTRA holds arguments that are not in the file``, or that a named recipe sets values of its own."""
    if field.startswith(OF_RECIPE):
        return f"The recipe {field.removeprefix(OF_RECIPE)} sets values that are not in the file"
    return f"{field} holds arguments that are not in the file"


class _TrainingFields(AxisFields[Size, Word, Switch], Generic[Size, Word, Switch], total=False):
    """Fields of a training run but for its devices; those of a type variable may have several values in a grid."""

    global_batch_size: Size | None
    seq_len: Size | None
    dtype: str | None
    framework: str | None
    optimizer: str | None
    lora_rank: int | None
    lora_targets: str | None
    frozen_bits: int | None
    attention: str | None
    context_parallel: str | None
    routing_skew: float | None
    fit_probability: float | None
    headroom: float | None
    fix: Mapping[str, int | str] | None
    set: Mapping[str, int | str] | None
    calibration: str | Path | None


class _FieldsOnDevices(_TrainingFields[Size, Word, Switch], Generic[Size, Word, Switch], total=False):
    cluster: str | Path | Cluster | None
    num_devices: Size | None
    price: float | None


class _RunFields(_FieldsOnDevices[Size, Word, Switch], Generic[Size, Word, Switch], total=False):
    phase: str | None
    context_len: Size | None
    eager: bool
    kernels: str | None
    kv_dtype: str | None
    utilization: float | None
    max_num_seqs: Size | None
    max_num_batched_tokens: Size | None
    launch: str | Path | None


class TrainingOptions(_TrainingFields[int, str, bool], total=False):
    """Keywords that state a training run but for its devices."""


class RunOnDevices(_FieldsOnDevices[int, str, bool], total=False):
    """Keywords that state a training run with its devices."""


class RunOptions(_RunFields[int, str, bool], total=False):
    """Keywords that state a run of any kind."""


class GridOptions(
    _RunFields[int | Sequence[int] | Array, str | Sequence[str] | Array, bool | Sequence[bool] | Array], total=False
):
    """The same, where lists and arrays ask for each of their values."""


_KINDS: Mapping[str, type] = {kind.__name__: kind for kind in (str, int, float, bool, dict, Mapping, Path)}


def _rows(place: str) -> dict[str, RunField]:
    """The fields ``before`` or ``after`` the axes of the plan."""
    return {name: _row(name, about) for name, about in packaged_toml("run", "fields.toml")[place].items()}


def _row(name: str, about: JsonMap) -> RunField:
    metavar = about.get("metavar", "N")
    choices = about.get("choices", metavar.split("|") if "|" in metavar else ())
    enums = {"unit": Unit(about.get("unit", "")), "panel": Panel[about.get("panel", "QUESTION")]}
    kind = _KINDS[about.get("kind", "str")]
    return RunField(**{**about, **enums, "name": name, "kind": kind, "choices": tuple(choices)})


FIELDS: Mapping[str, RunField] = {**_rows("before"), **AXES, **_rows("after")}

OF_ENGINES = ("kv_dtype", "utilization", "max_num_seqs", "max_num_batched_tokens")
"""Settings of a serving framework."""

OF_ONE_PASS = {
    "phase": "serving has both phases",
    "seq_len": "serving takes input_len",
    "context_len": "serving takes input_len and output_len",
    "microbatch_size": "serving takes concurrency",
    "eager": "an engine replays its steps from a graph",
}
"""Fields of a run that state one pass of it, and what a server has instead."""
NOT_OF_SERVERS = (
    *OF_ONE_PASS,
    *(name for name, row in FIELDS.items() if not row.inference and name not in ("price", "launch")),
)
"""The price of a device-hour is of the server as a whole, not of one pass; a launch file may start a server."""
NOT_OF_DEPLOYMENTS = ("launch", *(name for name in NOT_OF_SERVERS if name not in ("fix", "cluster")))


def check_names(options: Mapping[str, Any], fields: type = RunOptions) -> None:
    """Raise ``InputError`` for a keyword that is none of ``fields``, with the nearest that is."""
    for name in options:
        if name not in fields.__annotations__:
            nearest = difflib.get_close_matches(name, fields.__annotations__, n=1, cutoff=0.4)
            raise InputError(name, str(options[name]), "is not a field of a run", nearest[0] if nearest else "")


_SIZE = re.compile(
    r"(?P<number>-?[0-9][0-9_,]*(?:\.[0-9]+)?(?:e\+?[0-9]+)?)\s*(?P<suffix>(?:[kmbg]|t(?!ok))?)\s*(?P<unit>[a-z]*)",
    re.IGNORECASE,
)
_BINARY = {"k": 2**10, "m": 2**20}
"""Lengths and counts are powers of two: 8k tokens are 8,192."""


def parse_size(field: str, text: str) -> int:
    """A whole number of a field as people write it: ``4096``, ``4_096``, ``4,096``, ``8k`` tokens.

    Raises ``InputError`` for what is no size, and for a number of tokens where sequences are counted.
    """
    row = FIELDS.get(field)
    unit = row.unit if row else Unit.NONE
    match = _SIZE.fullmatch(text.strip())
    example = row.example if row and row.example else "8"
    if not match:
        raise InputError(field, text, "must be a whole number", example)
    number, suffix = match["number"].replace(",", "").replace("_", ""), match["suffix"].lower()
    if match["unit"].lower() not in ("", unit.value, unit.value.rstrip("s"), "tok" * (unit is Unit.TOKENS)):
        raise InputError(field, text, f"counts {unit.value or 'a plain number'}, not {match['unit']}", example)
    if unit is Unit.SEQUENCES and suffix in ("m", "b", "g", "t"):
        sequences = max(int(float(number) * 2 ** (20 if suffix == "m" else 30)) // 4096, 1)
        near = f"{sequences}, if tokens at seq_len=4096 were meant" if suffix == "m" else example
        raise InputError(field, text, "counts sequences, not tokens: divide the tokens by seq_len", near)
    if suffix not in ("", *_BINARY):
        raise InputError(field, text, f"must be a whole number{f' of {unit.value}' if unit.value else ''}", example)
    value = float(number) * _BINARY.get(suffix, 1)
    if value != int(value):
        raise InputError(field, text, "must be a whole number", str(max(round(value), 1)))
    return int(value)


MOST_TOKENS = 2**30
"""Tokens per step beyond which a batch was meant in tokens: published runs end at 64M."""


def check_batch(batch: int, seq_len: int) -> None:
    """Raise ``InputError`` for a number of tokens given as ``global_batch_size``."""
    if batch * seq_len > MOST_TOKENS and batch >= seq_len:
        must = f"counts sequences: with seq_len={seq_len} these are {batch * seq_len:.3g} tokens per step"
        raise InputError("global_batch_size", batch, must, f"{max(round(batch / seq_len), 1)}, if tokens were meant")
