"""The question as one record, every fact with its origin; and the table of its fields, from which every command, the
Python interface, HTTP and the JSON schemas are made.

A run is asked with the facts that a user states, and completed (`sartor.ask.complete`) by rules, by a trainer's usual
values and by the search; an answer carries the finished run, so that it never says more than was asked.

`RunOptions` types the keywords (editors complete them); `FIELDS` has one row each, in the order of help pages.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.model.plan import AXES, AxisFields, Size, Switch, Word
from sartor.model.workload import Optimizer
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


def _size(name: str, unit: Unit, words: str, help: str, **more: Any) -> RunField:
    return RunField(name=name, unit=unit, words=words, help=help, **{"kind": int, "least": 1, "most": 2**40, **more})


def _word(name: str, metavar: str, words: str, help: str, **more: Any) -> RunField:
    """A field whose value is a word; a metavar such as ``a|b`` lists all."""
    choices = tuple(metavar.split("|")) if "|" in metavar else ()
    return RunField(name=name, words=words, help=help, metavar=metavar, **{"kind": str, "choices": choices, **more})


_ROWS = (
    _word(
        "gpu", "GPU", "device", "A name from `sartor catalog gpus`, or a TOML file. [default: the cluster's, else h100]"
    ),
    _word("phase", "train|prefill|decode", "phase", "What the model is doing."),
    _word(
        "cluster",
        "CLUSTER",
        "cluster",
        "A name from `sartor catalog clusters`, or a TOML file. [default: the GPU's usual one]",
        inference=False,
    ),
    _word(
        "launch",
        "FILE",
        "launch file",
        "Launch file of the run (Megatron script, torchtitan TOML, ...). Options win over what it says.",
        kind=Path,
        inference=False,
    ),
    _size(
        "num_devices",
        Unit.DEVICES,
        "devices",
        "Devices of the whole plan. [default: the fewest, from a node up, on which the run fits]",
        example="64",
        inference=False,
    ),
    _size(
        "global_batch_size",
        Unit.SEQUENCES,
        "sequences per step",
        "Sequences per step over all devices. [default: 4M tokens]",
        metavar="B",
        example="512",
        inference=False,
    ),
    _size(
        "seq_len",
        Unit.TOKENS,
        "tokens per sequence",
        "Tokens per sequence. [default: 4096, or the model's maximum]",
        example="4096",
    ),
    *AXES.values(),
    _word(
        "fix",
        "KEY=VALUE,...",
        "fixed values",
        "Axes of the plan, and switches of trainer and job: `--fix tp=8,tp_overlap=on`. May be repeated.",
        kind=Mapping,
        panel=Panel.PLAN,
        inference=False,
    ),
    _size(
        "context_len",
        Unit.TOKENS,
        "tokens in the KV cache",
        "Tokens already in the KV cache. [default: decode --seq-len, else 0]",
        least=0,
        most=None,
        training=False,
    ),
    _word(
        "dtype",
        "TYPE",
        "data type",
        "Data type of the matrix multiplications: bf16, fp16, fp8, fp8_block, mxfp8, nvfp4, ... "
        "[default: bf16 if the device has it]",
        example="fp8",
    ),
    _word(
        "framework",
        "NAME",
        "trainer",
        "Trainer: megatron, torchtitan, nemo, maxtext, ...; its release after an @: nemo@26.06. [default: megatron]",
        inference=False,
    ),
    _word(
        "optimizer",
        "NAME",
        "optimizer",
        "Optimizer of the run: adam, sgd, muon, lion, adafactor; in 8 or 4 bits adam8bit, adam4bit; paged to the host "
        "paged_adam, paged_adam8bit; none for forward and backward alone. [default: adam]",
        choices=tuple(kind.value for kind in Optimizer),
        inference=False,
    ),
    _size(
        "lora_rank",
        Unit.NONE,
        "rank of the adapters",
        "Freezes the model and trains low-rank adapters of this rank (LoRA).",
        most=2**14,
        example="16",
        panel=Panel.TUNING,
        inference=False,
    ),
    _word(
        "lora_targets",
        "all|attention|qv",
        "adapted layers",
        "Linear layers with an adapter: all, those of attention, or queries and values alone. [default: all]",
        panel=Panel.TUNING,
        inference=False,
    ),
    _size(
        "frozen_bits",
        Unit.NONE,
        "bits per frozen weight",
        "Bits per frozen weight of the layers: 16, 8 (LLM.int8), or 4 (NF4, as QLoRA has it). [default: 16]",
        most=16,
        example="4",
        panel=Panel.TUNING,
        inference=False,
    ),
    _word("attention", "flash|unfused", "attention", "Attention as one fused kernel, or as three. [default: flash]"),
    _word(
        "context_parallel",
        "KIND",
        "context parallelism",
        "How devices exchange a split sequence. [default: the trainer's]",
        choices=("ring", "all_to_all", "all_gather"),
        panel=Panel.RARE,
        inference=False,
    ),
    RunField(
        name="routing_skew",
        kind=float,
        words="routing skew",
        help="Tokens of the busiest expert relative to the mean. [default: 1]",
        metavar="RATIO",
        least=1,
        panel=Panel.RARE,
    ),
    RunField(
        name="fit_probability",
        kind=float,
        words="probability of fit",
        unit=Unit.SHARE,
        help="Probability with which a plan must fit in memory, from 0.5. [default: 0.9 on GPUs]",
        metavar="SHARE",
        least=0.5,
        most=0.999,
        panel=Panel.RARE,
        inference=False,
    ),
    RunField(
        name="headroom",
        kind=float,
        words="free memory",
        unit=Unit.SHARE,
        help="Share of memory that stays free. [default: what --fit-probability needs; 0 on own chips]",
        metavar="SHARE",
        least=0,
        most=1,
        panel=Panel.RARE,
    ),
    RunField(
        name="price",
        kind=float,
        words="price",
        unit=Unit.USD_PER_HOUR,
        help="Price of a device and hour in USD. [default: the cluster's]",
        metavar="USD",
        least=0,
        panel=Panel.RARE,
        inference=False,
    ),
    RunField(
        name="eager",
        kind=bool,
        words="eager",
        help="As eager PyTorch, without compiler or CUDA graph: the host launches every operation by itself.",
        panel=Panel.RARE,
    ),
    _word(
        "kernels",
        "FRAMEWORK",
        "kernels",
        "In inference: the framework whose kernels run (vllm, sglang, trtllm, torch), its release after an @: "
        "vllm@0.10.1; on AMD the library of GEMMs. [default: vllm, and the interval covers the others]",
        panel=Panel.RARE,
        training=False,
    ),
    _word(
        "kv_dtype",
        "TYPE",
        "type of keys and values",
        "Data type of the key/value cache: bf16, fp8. [default: the checkpoint's, else the framework's]",
        example="fp8",
        panel=Panel.RARE,
        training=False,
    ),
    RunField(
        name="utilization",
        kind=float,
        words="memory utilization",
        unit=Unit.SHARE,
        help="Share of memory that a serving framework fills: vLLM's gpu_memory_utilization, SGLang's "
        "mem_fraction_static, TensorRT-LLM's free_gpu_memory_fraction. [default: its release's]",
        metavar="SHARE",
        least=0,
        most=1,
        panel=Panel.RARE,
        training=False,
    ),
    _size(
        "max_num_seqs",
        Unit.SEQUENCES,
        "most sequences of a step",
        "Most sequences that a serving framework runs at once; it keeps memory to sample them. "
        "[default: the framework's]",
        example="256",
        panel=Panel.RARE,
        training=False,
        most=2**20,
    ),
    _size(
        "max_num_batched_tokens",
        Unit.TOKENS,
        "most tokens of a step",
        "Most tokens that a serving framework takes into a step; it keeps memory for them. [default: the framework's]",
        example="8192",
        panel=Panel.RARE,
        training=False,
        most=2**24,
    ),
    _word(
        "set",
        "FIELD=VALUE",
        "changed fields of the shape",
        "Change fields of the shape, such as num_heads=20. May be repeated.",
        kind=dict,
    ),
    _word(
        "calibration",
        "FILE",
        "calibration",
        "Calibration file from `sartor calibrate` for this device.",
        kind=Path,
        panel=Panel.RARE,
    ),
)
FIELDS: Mapping[str, RunField] = {row.name: row for row in _ROWS}

OF_ENGINES = ("kv_dtype", "utilization", "max_num_seqs", "max_num_batched_tokens")
"""Settings of a serving framework."""

OF_ONE_PASS = {
    "phase": "serving has both phases",
    "seq_len": "serving takes input_len",
    "context_len": "serving takes input_len and output_len",
    "microbatch_size": "serving takes concurrency",
    "pp": "a server has one stage",
    "eager": "an engine replays its steps from a graph",
}
"""Fields of a run that state one pass of it, and what a server has instead."""
NOT_OF_SERVERS = (*OF_ONE_PASS, *(name for name, row in FIELDS.items() if not row.inference and name != "price"))
"""The price of a device-hour is of the server as a whole, not of one pass."""
NOT_OF_DEPLOYMENTS = tuple(name for name in NOT_OF_SERVERS if name != "fix")


def check_names(options: Mapping[str, Any], fields: type = RunOptions) -> None:
    """Raise ``InputError`` for a keyword that is none of ``fields``, with the nearest that is."""
    for name in options:
        if name not in fields.__annotations__:
            nearest = difflib.get_close_matches(name, fields.__annotations__, n=1, cutoff=0.4)
            raise InputError(name, str(options[name]), "is not a field of a run", nearest[0] if nearest else "")


_SIZE = re.compile(
    r"(?P<number>-?[0-9][0-9_,]*(?:\.[0-9]+)?)\s*(?P<suffix>(?:[kmbg]|t(?!ok))?)\s*(?P<unit>[a-z]*)", re.IGNORECASE
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
