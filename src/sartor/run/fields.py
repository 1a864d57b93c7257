"""The table of a run's fields: every command, the Python interface, HTTP and the JSON schemas are made from it.

`RunOptions` types the keywords (editors complete them); `FIELDS` has one row each, in the order of help pages.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar

from sartor.errors import InputError
from sartor.frozen import dataclass
from sartor.hardware.cluster import Cluster
from sartor.model.workload import PipelineSchedule, Recompute
from sartor.units import Array

Size = TypeVar("Size")
Word = TypeVar("Word")
Switch = TypeVar("Switch")


class _TrainingFields(TypedDict, Generic[Size, Word, Switch], total=False):
    """Fields of a training run but for its devices; those of a type variable may have several values in a grid."""

    global_batch_size: Size | None
    seq_len: Size | None
    microbatch_size: Size | None
    dtype: str | None
    framework: str | None
    optimizer: str | None
    attention: str | None
    context_parallel: str | None
    routing_skew: float | None
    tp: Size | None
    pp: Size | None
    dp: Size | None
    cp: Size | None
    ep: Size | None
    virtual_stages: Size | None
    schedule: Word | None
    sequence_parallel: Switch | None
    zero_stage: Size | None
    shard_group: Size | None
    recompute: Word | None
    recompute_layers: int | None
    optimizer_offload: Switch | None
    headroom: float | None
    set: Mapping[str, int | str] | None
    calibration: str | Path | None


class _FieldsOnDevices(_TrainingFields[Size, Word, Switch], Generic[Size, Word, Switch], total=False):
    cluster: str | Path | Cluster | None
    num_devices: Size | None


class _RunFields(_FieldsOnDevices[Size, Word, Switch], Generic[Size, Word, Switch], total=False):
    phase: str | None
    context_len: Size | None
    eager: bool
    kernels: str | None
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


class Panel(Enum):
    """Groups of options on a help page."""

    QUESTION = "The run"
    PLAN = "The plan (what is left out is searched for)"
    RARE = "Rarely needed"


class Unit(Enum):
    """What a size counts; it tells what ``8k`` or ``4M`` can mean."""

    NONE = ""
    TOKENS = "tokens"
    SEQUENCES = "sequences"
    DEVICES = "devices"
    SHARE = "share"
    USD_PER_HOUR = "USD per device and hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunField:
    """One field of a run."""

    name: str
    kind: type
    words: str
    """What it is, as a noun phrase."""
    help: str
    panel: Panel = Panel.QUESTION
    unit: Unit = Unit.NONE
    metavar: str = "N"
    choices: tuple[str, ...] = ()
    """Words it may take, in the order of help pages; empty: any."""
    least: float | None = None
    most: float | None = None
    example: str = ""
    axis: bool = False
    """An axis of the plan: what is not stated is searched for."""
    kinds: type[PipelineSchedule] | type[Recompute] | None = None
    """The numbers behind the words of an axis."""
    mechanism: str = ""
    """What a plan has whose value is none of the ``plain`` ones, as a noun."""
    plain: tuple[int, ...] = (1,)
    common: tuple[int, ...] = ()
    """Values that more trainers have, the likeliest first: tried for a plan that a trainer cannot run."""
    fits_rank: int = 0
    """Place among the axes that are changed for a plan that does not fit; 0: left as it is."""
    training: bool = True
    """Applies to training."""
    inference: bool = True
    """Applies to prefill and decode."""

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def numbers(self) -> Mapping[str, int]:
        """The numbers of an axis's words; empty if its values are numbers."""
        if self.kind is bool:
            return {"false": 0, "true": 1, "off": 0, "on": 1, "no": 0, "yes": 1}
        return {kind.word: int(kind) for kind in self.kinds or ()}

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and greatest number of an axis."""
        numbers = self.numbers.values()
        most = max(numbers) if numbers else min(int(self.most or 2**31), 2**31)
        return (min(numbers) if numbers else int(self.least or 0)), most

    def shown(self, number: int) -> int | str | bool:
        """A number of an axis as users state it: a word, true or false, or itself."""
        if self.kinds is not None:
            return self.kinds(number).word
        return bool(number) if self.kind is bool else int(number)


def _axis(name: str, words: str, help: str, **more: Any) -> RunField:
    return RunField(
        name=name,
        words=words,
        help=help,
        panel=Panel.PLAN,
        axis=True,
        **{"kind": int, "least": 1, "common": (1,), **more},
    )


def _size(name: str, unit: Unit, words: str, help: str, **more: Any) -> RunField:
    return RunField(name=name, unit=unit, words=words, help=help, **{"kind": int, "least": 1, "most": 2**40, **more})


def _word(name: str, metavar: str, words: str, help: str, **more: Any) -> RunField:
    """A field whose value is a word; a metavar such as ``a|b`` lists all."""
    choices = tuple(metavar.split("|")) if "|" in metavar else ()
    return RunField(name=name, words=words, help=help, metavar=metavar, **{"kind": str, "choices": choices, **more})


_ROWS = (
    _word(
        "gpu",
        "GPU",
        "device",
        "A name from `sartor catalog gpus`, or a TOML file. [default: the cluster's, else h100]",
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
        "Launch file of the run (Megatron script, torchtitan TOML, ...): states what it says; options win over it.",
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
    _size(
        "microbatch_size",
        Unit.SEQUENCES,
        "sequences per microbatch",
        "Sequences per microbatch. [default: train searched, prefill 1, decode 8]",
        example="4",
        axis=True,
        common=(1,),
        fits_rank=4,
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
    _word("optimizer", "adam|sgd|muon", "optimizer", "Optimizer of the run. [default: adam]", inference=False),
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
    _axis(
        "tp", "tensor parallel", "Tensor-parallel devices.", example="8", mechanism="tensor parallelism", fits_rank=5
    ),
    _axis(
        "pp", "pipeline parallel", "Pipeline-parallel stages.", example="4", mechanism="pipeline stages", fits_rank=6
    ),
    _axis("dp", "data parallel", "Data-parallel replicas.", common=(), inference=False),
    _axis("cp", "context parallel", "Context-parallel devices.", mechanism="context parallelism", inference=False),
    _axis(
        "ep",
        "expert parallel",
        "Expert-parallel groups; inference takes tp x ep devices.",
        example="8",
        mechanism="expert parallelism",
        fits_rank=2,
    ),
    _axis(
        "virtual_stages",
        "chunks per stage",
        "Interleaved chunks per device.",
        mechanism="interleaved stages",
        common=(1, 2),
        inference=False,
    ),
    _word(
        "schedule",
        "NAME",
        "pipeline schedule",
        "Order of microbatches in a pipeline.",
        panel=Panel.PLAN,
        axis=True,
        kinds=PipelineSchedule,
        mechanism="another pipeline schedule",
        plain=(0,),
        common=(0,),
        inference=False,
    ),
    _axis(
        "sequence_parallel",
        "sequence parallel",
        "Split the sequence over the tensor-parallel devices between their products.",
        kind=bool,
        least=None,
        common=(1, 0),
        inference=False,
    ),
    _axis(
        "zero_stage",
        "ZeRO",
        "What replicas share: 1 optimizer states, 2 gradients too, 3 weights too.",
        metavar="0|1|2|3",
        least=0,
        most=3,
        mechanism="sharded weights",
        plain=(0, 1, 2),
        common=(2, 3, 1, 0),
        fits_rank=1,
        inference=False,
    ),
    _axis(
        "shard_group",
        "devices per set of shards",
        "Devices per set of shards; 0: all replicas.",
        least=0,
        mechanism="sets of shards",
        plain=(0,),
        common=(0,),
        inference=False,
    ),
    _word(
        "recompute",
        "none|selective|full",
        "recomputation",
        "What backward computes again.",
        panel=Panel.PLAN,
        axis=True,
        kinds=Recompute,
        mechanism="recomputation",
        plain=(0,),
        common=(0, 2),
        fits_rank=3,
        inference=False,
    ),
    _axis(
        "recompute_layers",
        "recomputed layers",
        "Layers of each stage that are recomputed in full.",
        mechanism="recomputation of some layers",
        plain=(-1,),
        common=(-1,),
        inference=False,
    ),
    _axis(
        "optimizer_offload",
        "optimizer offload",
        "Keep optimizer states in host memory.",
        kind=bool,
        least=None,
        mechanism="optimizer in host memory",
        plain=(0,),
        common=(0,),
        inference=False,
    ),
    RunField(
        name="headroom",
        kind=float,
        words="free memory",
        unit=Unit.SHARE,
        help="Share of memory that stays free. [default: 0.05 in training on GPUs, else 0]",
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
        "In inference: the framework whose kernels run (vllm, sglang, trtllm, torch); on AMD the library of "
        "GEMMs. [default: vllm, and the interval covers the others]",
        panel=Panel.RARE,
        training=False,
    ),
    _word(
        "set",
        "FIELD=VALUE",
        "changed fields of the shape",
        "Change the shape: `--set num_heads=20`. May be repeated.",
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
AXES = tuple(row.name for row in _ROWS if row.axis)
"""Axes of a plan."""

OF_ONE_PASS = {
    "phase": "serving has both phases",
    "seq_len": "serving takes input_len",
    "context_len": "serving takes input_len and output_len",
    "microbatch_size": "serving takes concurrency",
    "pp": "a server has one stage",
    "eager": "an engine replays its steps from a graph",
}
"""Fields of a run that state one pass of it, and what a server has instead."""


def check_names(options: Mapping[str, Any], fields: type = RunOptions) -> None:
    """Raise ``InputError`` for a keyword that is none of ``fields``, with the nearest that is."""
    for name in options:
        if name not in fields.__annotations__:
            nearest = difflib.get_close_matches(name, fields.__annotations__, n=1, cutoff=0.4)
            raise InputError(name, str(options[name]), "is not a field of a run", nearest[0] if nearest else "")


def fixed_axes(fix: Mapping[str, int | str], options: Mapping[str, object]) -> dict[str, int | str]:
    """The axes that ``fix`` and the options of their names state. Raises ``InputError`` where they contradict each
    other."""
    axes = dict(fix)
    for name in AXES:
        if (value := options.get(name)) is None:
            continue
        word = str(value).lower()
        if str(axes.get(name, word)).lower() != word:
            must = f"fix says {name}={axes[name]}: must be stated once"
            raise InputError(name, value, must, f"{name}={axes[name]} or {name}={word}")
        axes[name] = word
    return axes


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
        raise InputError(field, text, f"must be a whole number of {unit.value or 'units'}", example)
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
