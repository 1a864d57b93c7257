"""The launch-field table: which flag or key of a trainer sets which quantity of a plan, or what a model computes beyond
its sizes (``fields.toml`` explains the columns).

Writing and reading walk the same rows. Of a model, every field that differs from a plain decoder's is written, or the
launch is refused: a file that trains another model than the one priced would be worse than none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby

from sartor.bounded import packaged_toml
from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.launch.plan import LaunchKind, refuser
from sartor.launch.stated import MAX_SIZE, Flags, Stated, launch_words, shown_flag
from sartor.model.layer import DenseFfn, LatentAttentionMixer
from sartor.model.plan import AXES
from sartor.model.shape import NEUTRAL, Numerics, TransformerShape, Value
from sartor.model.training import Recipe, Recompute, TrainingJob, TrainingPlan
from sartor.model.workload import Loss
from sartor.operators import DType
from sartor.step.stages import is_v_shaped, round_of

Argument = tuple[str, ...]
Quantities = Mapping[str, Value | None]
"""Values by the table's names; None where a launch does not give one that has no default."""
READ_ONLY = "read"
"""The part of a table with what is read by code and never written."""
NOT = "not "
"""Before a field of another file that is true where the flag is not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A quantity, and a trainer's argument for it."""

    field: str = ""
    part: str = ""
    argument: str = ""
    older: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    default: Value | None = None
    when: str = ""
    least: int = 1
    most: int = MAX_SIZE
    constant: Value | None = None
    only: tuple[Value, ...] = ()
    refuse: str = ""
    flag: Value | None = None
    words: Mapping[str, Value] | None = None
    also: Mapping[str, Value] | None = None
    whole: bool = False
    always: bool = False
    follows: bool = False
    by_code: bool = False
    bridge: str = ""
    nemo: str = ""
    bytes_of: tuple[str, ...] = ()
    sign: int = 0
    share: float = 1.0

    def applies(self, traits: set[str], release: tuple[int, ...] = ()) -> bool:
        """Whether a model or plan with these traits has it, in a release of the trainer (empty: any)."""
        return set(self.when.split()) <= traits and (not release or self._first() <= release < self._end())

    def _first(self) -> tuple[int, ...]:
        return tuple(map(int, self.since.split("."))) if self.since else ()

    def _end(self) -> tuple[float, ...]:
        return tuple(map(int, self.until.split("."))) if self.until else (math.inf,)

    def spelled(self, value: Value | None) -> Value | None:
        """What a file says for a value; None if it says nothing, as where the value is the trainer's default."""
        if self.constant is not None:
            return self.constant
        if not self.argument or self.by_code or value is None or (value == self.default and not self.always):
            return None
        if self.flag is not None:
            return True if value == self.flag else None
        return value if self.words is None else self.words.get(text_of(value))

    @property
    def rates(self) -> dict[str, float]:
        """The rates by which it is on or off, if its words are numbers: any rate above 0 is on."""
        numbers = [word for word in (self.words or {}).values() if re.fullmatch(r"\d\.\d+", str(word))]
        return {name: float(word) for name, word in (self.words or {}).items()} if numbers else {}

    def arguments(self, value: Value | None) -> Iterator[Argument]:
        """The words of a command line for a value."""
        word = self.spelled(value)
        if word is not None:
            yield (self.argument,) if self.flag is not None or word == "" else (self.argument, text_of(word))

    def refused(self, value: Value | None) -> str:
        """Why a value cannot be expressed; empty if it can."""
        if self.only and value not in self.only:
            return self.refuse or "has " + " or ".join(text_of(v) or "none" for v in self.only) + " alone"
        if self.whole and isinstance(value, float) and not value.is_integer():
            return f"takes whole numbers by {self.argument}"
        return ""

    def read(self, flags: Stated) -> Value | None:
        """The value that a command line or a file gives, else the default."""
        names = (self.argument, *self.older)
        if not self.argument or self.by_code:
            return self.default
        if self.field in flags.options.sizes and not (self.when and not any(flags.shown(name) for name in names)):
            return self._stated(flags, names)
        if self.flag is not None:
            return self.flag if flags.on(*names) else self.default
        if "" in (self.words or {}).values():  # given for several values: which one is for the reader to say
            flags.on(*names)
            return self.default
        name = next((name for name in names if flags.has(name)), self.argument)
        if self.rates:
            return flags.number(name, self.rates[text_of(bool(self.default))]) > 0
        if self.words is not None or isinstance(self.default, str):
            return self._meant(flags, name)
        if self.whole or isinstance(self.default, float):
            number = flags.number(name, float(self.default or 0))
            return int(number) if self.whole else number
        if isinstance(self.default, bool):
            return flags.flag(name, self.default)
        return flags.size(name, self.default, least=self.least, most=self.most)

    def _stated(self, flags: Stated, names: Iterable[str]) -> Value:
        """The number that an option states; what the file says instead is kept, in words."""
        number = flags.options.sizes[self.field]
        value = bool(number) if isinstance(self.default, bool) else number
        words = next((text for name in names if (text := flags.shown(name))), "")
        meant = text_of(self._meanings().get(words, words))
        if words and meant != text_of(value):
            flags.replaced.setdefault(self.field, meant)
        elif not words and self.default not in (None, value):
            flags.replaced.setdefault(self.field, f"nothing ({text_of(self.default)} by default)")
        return value

    def _meanings(self) -> dict[str, Value]:
        """Values by their words."""
        meanings: dict[str, Value] = {}
        for text, spelled in (self.words or {}).items():
            meanings.setdefault(text_of(spelled), value_of(text))  # the first of several values with one word is meant
        return meanings | dict(self.also or {})

    def _meant(self, flags: Stated, name: str) -> Value | None:
        """The value of a word."""
        meanings = self._meanings()
        word = flags.word(name, () if self.part == "numerics" or self.follows else tuple(meanings))
        return self.default if word is None else meanings.get(word, word)


@cache
def rows(kind: LaunchKind | str, *parts: str) -> tuple[Row, ...]:
    """The rows of a trainer, in the order in which they are written; without ``parts`` all but those only read."""
    name = kind if isinstance(kind, str) else kind.value
    table: JsonDict = packaged_toml("launch", "fields.toml").get(name, {}) or dialect_tables().get(name, {})
    return tuple(
        Row(**{"by_code": part in ("sizes", "unpriced", READ_ONLY), **row, "part": part, **_tuples(row)})
        for part in parts or [part for part in table if part != READ_ONLY]
        for row in table.get(part, ())
    )


@cache
def dialect_tables() -> JsonDict:
    """``dialects.toml``: recipes that say a run in keys."""
    return packaged_toml("launch", "dialects.toml")


def plan_rows() -> tuple[Row, ...]:
    """The rows of Megatron-LM's plan and job, also in formats with other names for its arguments."""
    return rows(LaunchKind.MEGATRON, "parallel", "training", READ_ONLY)


def _tuples(row: JsonDict) -> dict[str, tuple[Value, ...]]:
    return {name: tuple(row[name]) for name in ("only", "older", "bytes_of") if name in row}


def row_of(kind: LaunchKind | str, argument: str) -> Row | None:
    """The first row with an argument, by its name or an older one."""
    table = (*rows(kind), *rows(kind, READ_ONLY))
    return next((row for row in table if argument in (row.argument, *row.older)), None)


# -- plans and jobs -----------------------------------------------------------------------------------------------


def quantities(job: TrainingJob, plan: TrainingPlan) -> dict[str, Value]:
    """Every quantity of a job and a plan that the table names."""
    d, trainer = plan.dims, job.trainer
    ranks = int(d.dp * d.cp)
    group = int(plan.shard_group) or ranks
    switches = ("tp_overlap", "dp_overlap", "p2p_overlap", "ep_overlap", "fused_kernels", "fused_loss", "cuda_graphs")
    size, chunks = int(round_of(int(d.pp), int(plan.num_microbatches))), int(plan.virtual_stages)
    rounds = chunks > 1 and size != d.pp and not is_v_shaped(plan.schedule, int(d.pp), chunks)
    return {
        **({"round": size} if rounds else {}),
        **{name: row.shown(int(plan.columns[name])) for name, row in AXES.items()},
        "expert_tp": int(trainer.expert_tp(d.tp, d.ep)),
        "dispatch_once": trainer.dispatch_once and bool(d.ep > 1),
        "seq_len": int(job.seq_len),
        "global_batch_size": int(job.global_batch_size),
        "local_batch_size": int(plan.microbatch_size) * (int(plan.num_microbatches) if d.pp > 1 else 1),
        "num_microbatches": int(plan.num_microbatches),
        "num_devices": int(plan.num_devices),
        "sharded": bool(plan.zero_stage > 0),
        "fsdp": bool(plan.zero_stage > 1),
        "reshards": bool(plan.zero_stage == 3),
        "instances": ranks // group,
        "replicas": int(d.dp) * int(d.cp) // group if plan.zero_stage else int(d.dp),
        "shards": group // int(d.cp) if plan.zero_stage else 1,
        "recomputed": plan.recompute is Recompute.FULL,
        "recipe": job.recipe.value,
        **{recipe.value: job.recipe is recipe for recipe in (Recipe.BF16, Recipe.FP16)},
        "optimizer": job.optimizer.value,
        "param_dtype": "fp32" if job.recipe is Recipe.FP32 else "bf16",
        "moments_dtype": job.moments_dtype.value,
        "main_dtype": trainer.main_dtype.value,
        "linear_loss": trainer.fused_loss is Loss.LINEAR,
        "precision_aware": job.moments_dtype is not DType.FP32 or bool(plan.optimizer_offload),
        "attention_kernel": job.attention_kernel.value,
        "context_parallel": job.context_parallel.value,
        "dropout": job.dropout,
        "grad_dtype": trainer.grad_dtype.value,
        "grad_fusion": trainer.grad_fusion and not plan.zero_stage > 1,
        "narrow_primary": trainer.memory.narrow_primary and 1 <= job.recipe.dtype.bytes < 2,
        **{name: bool(getattr(trainer, name)) for name in switches},
    }


def traits_of(job: TrainingJob, plan: TrainingPlan) -> set[str]:
    """Words of the table's ``when`` that apply to a plan."""
    d = plan.dims
    degrees = {name for name in ("tp", "pp", "dp", "cp", "ep") if getattr(d, name) > 1}
    facts = {
        "virtual": plan.virtual_stages > 1,
        "zero": plan.zero_stage > 0,
        "replicated": plan.zero_stage == 0,
        "mesh": plan.zero_stage > 0 or d.tp > 1,
        "recomputed": plan.recompute is Recompute.FULL,
        "fsdp": plan.zero_stage > 1,
        "moe": job.shape.moe_ffn is not None,
        "mxfp8": job.recipe is Recipe.MXFP8,
    }
    return degrees | {name for name, holds in facts.items() if holds}


def check_rows(
    kind: LaunchKind, part: str, values: Mapping[str, Value], traits: set[str], release: tuple[int, ...] = ()
) -> None:
    """Raise `InputError` for a value that the trainer does not have."""
    for row in rows(kind, part):
        if row.applies(traits, release) and (why := row.refused(values.get(row.field))):
            raise refuser(kind)(row.field, values[row.field], why, ", ".join(map(text_of, row.only)))


def written(
    kind: LaunchKind | str,
    part: str,
    values: Mapping[str, Value],
    traits: set[str],
    code: Mapping[str, Iterable[Argument]],
) -> Iterator[Argument]:
    """The arguments of a part of the table; ``code`` has those of quantities that several arguments say."""
    for (field, by_code), group in groupby(rows(kind, part), key=lambda row: (row.field, row.by_code)):
        if by_code:
            yield from code[field]
            continue
        for row in group:
            if row.applies(traits):
                yield from row.arguments(values.get(row.field))


def written_fields(
    kind: LaunchKind,
    part: str,
    values: Mapping[str, Value],
    traits: set[str],
    code: Mapping[str, object],
    release: tuple[int, ...] = (),
) -> JsonDict:
    """A part of the table as a nested table of keys; ``code`` has the values of keys written by code."""
    out: JsonDict = {}
    for row in rows(kind, part):
        if not row.argument or not row.applies(traits, release):
            continue
        value = code.get(row.argument) if row.by_code else row.spelled(values.get(row.field))
        if value is not None:
            *sections, key = row.argument.split(".")
            table = out
            for section in sections:
                table = table.setdefault(section, {})
            table[key] = value
    return out


def read_rows(kind: LaunchKind | str, flags: Stated, *parts: str) -> dict[str, Value | None]:
    """Every quantity that a command line gives, or its default; of rows with one quantity the first counts."""
    values: dict[str, Value | None] = {}
    flags.unchecked = _unchecked(kind, flags.options.fields)
    for row in rows(kind, *parts):
        if row.argument and row.field and not row.by_code:
            value = row.read(flags)
            values.setdefault(row.field, value if not row.follows else row.default)
    return values


def fields_in(kind: LaunchKind | str, flags: Stated, *parts: str) -> frozenset[str]:
    """Fields of the table of which an argument stands in a file with a value (``parts`` and what is only read)."""
    return frozenset(
        row.field
        for row in rows(kind, *parts, READ_ONLY)
        if row.field and row.argument and not row.follows and any(map(flags.gives, (row.argument, *row.older)))
    )


@cache
def _unchecked(kind: LaunchKind | str, fields: frozenset[str]) -> frozenset[str]:
    """Arguments that say fields which options state."""
    return frozenset(name for row in rows(kind) if row.field in fields for name in (row.argument, *row.older))


# -- releases -----------------------------------------------------------------------------------------------------

NEWEST = {LaunchKind.MEGATRON: "0.16.1", LaunchKind.TORCHTITAN: "0.3.0", LaunchKind.MEGATRON_BRIDGE: "0.3.1"}
"""Releases on PyPI as of 2026-11-23. The fields written for DeepSpeed and accelerate never changed."""


def release_of(kind: LaunchKind, text: str) -> tuple[int, ...]:
    """``0.14``, ``v0.14.0`` or ``core_v0.14`` as numbers; the newest if empty. Raises `InputError`."""
    if text and kind not in NEWEST:
        choices = ", ".join(kind.value for kind in NEWEST)
        raise InputError("trainer_version", text, f"{kind.title}'s files are the same in all its versions", choices)
    match = re.fullmatch(r"(?:core_)?[vr]?(\d{1,4}(?:\.\d{1,4}){0,3})", (text or NEWEST.get(kind, "0")).strip())
    if not match:
        raise InputError("trainer_version", text, "must be a version", NEWEST[kind])
    return tuple(int(part) for part in match[1].split("."))


def check_release(kind: LaunchKind, arguments: Iterable[Argument], version: str) -> None:
    """Check that the given version has every argument. Raises `InputError`."""
    if not version:
        return
    release = release_of(kind, version)
    for words in arguments:
        first = getattr(row_of(kind, words[0]), "since", "")
        if first and first != "0.5" and release[:2] < release_of(kind, first)[:2]:
            must = f"{kind.title} has {words[0]} since {first}"
            raise InputError("trainer_version", version, must, f"{first} or newer")


def text_of(value: Value) -> str:
    """A value as a command line writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (str, int)) else f"{value:.10g}"


def value_of(text: str) -> Value:
    """A word as a value: true or false, a number, else the word."""
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text) if text.lstrip("-").isdigit() else float(text)
    except ValueError:
        return text


# -- names of Megatron-LM -----------------------------------------------------------------------------------------


@cache
def argument_names() -> frozenset[str]:
    """Every argument of Megatron-LM and Megatron-DeepSpeed; the file's head gives commits and dates."""
    text = files("sartor.launch").joinpath("megatron_arguments.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line.startswith("--"))


def left_over(flags: Flags) -> tuple[list[str], list[str], list[str]]:
    """A command's unread flags for display: flags unknown to Megatron (each with a similar known one), its own flags
    without a price, and names of its own flags without effect."""
    names = argument_names()
    unknown, unpriced, ignored = list[str](), list[str](), list[str]()
    for name in flags.left():
        if name not in names:
            unknown.append(shown_flag(name, flags.given[name], names))
        elif no_bearing(name):
            ignored.append(name)
        else:
            unpriced.append(shown_flag(name, flags.given[name]))
    return unknown, unpriced, ignored


def no_bearing(name: str) -> bool:
    """Whether a Megatron argument affects neither time nor memory. An unknown name may match too."""
    return _no_bearing().match(name.replace("_", "-")) is not None


@cache
def _no_bearing() -> re.Pattern[str]:
    return re.compile(rf"--(no-)?({'|'.join(launch_words()['no_bearing']['megatron'])})")


OWN_CONFIG = "a trainer that reads the model's own config (--write deepspeed or accelerate)"
OF_SHAPE = {"activation", "norm_order"}
"""Numeric fields written by the functions that write the shape."""
BALANCE = {"aux_loss", "aux_loss_per_sequence", "router_bias"}
"""Fields that balance experts in training; none but the bias changes a trained model's forward pass."""


def numeric_arguments(
    kind: LaunchKind, shape: TransformerShape, fixed: Numerics | None = None
) -> tuple[list[Argument], list[str]]:
    """The arguments for what the model computes beyond its sizes, and notes. ``fixed`` is what the trainer's own model
    of these sizes computes. Raises `InputError` for a field without an argument."""
    if shape.numerics is None:
        return [], ["norm epsilon, rotary base and scaling are not known of this model: the trainer's defaults stand"]
    values, traits = _effective(shape, shape.numerics), _traits(shape, shape.numerics)
    table = [row for row in rows(kind, "numerics") if row.applies(traits)]
    out: list[Argument] = []
    for row in table:
        value = values.get(row.field, NEUTRAL.get(row.field, row.default))
        if value is not None and (why := row.refused(value)):
            raise _cannot(kind, shape, row.field, value, why)
        out += row.arguments(value)
    fixed_values = fixed or Numerics()
    written_fields = {row.field for row in table} | OF_SHAPE
    balance: list[str] = []
    for name in [
        field_name for field_name in dict.fromkeys([*values, *fixed_values.values]) if field_name not in written_fields
    ]:
        fixed_value = fixed_values.get(name)
        value = values.get(name, NEUTRAL.get(name, False))
        if value == fixed_value or _without_effect(name, traits):
            continue
        if fixed is None or name not in BALANCE:
            raise _cannot(kind, shape, name, value, "has no argument for it" if fixed is None else _other(fixed_value))
        balance.append(f"{name}={text_of(fixed_value or 0.0)}, not {text_of(value)}")
    notes = [] if shape.numerics.compared else [_uncompared(shape)]
    notes += [f"{kind.title} balances experts in its own way: {'; '.join(balance)}"] if balance else []
    return out, notes


def _other(value: Value | None) -> str:
    if value is None:
        return "has no argument for it"
    return f"has {text_of(value) or 'that of a plain decoder'} in its own model of these sizes"


def _cannot(kind: LaunchKind, shape: TransformerShape, name: str, value: Value, why: str) -> InputError:
    field_, neutral = name.removeprefix("config."), NEUTRAL.get(name)
    near = OWN_CONFIG if not neutral else f"{field_}={text_of(neutral)}, or {OWN_CONFIG}"
    return InputError(f"{shape.name or 'MODEL'}: {field_}", text_of(value), f"{kind.title} {why}", near)


def _uncompared(shape: TransformerShape) -> str:
    return (
        f"model_type={shape.model_type}: sizes and known fields are written, but what this family's own code computes "
        "beside them was not compared with the trainer's model; check it before training"
    )


def read_numerics(kind: LaunchKind, flags: Flags, shape: TransformerShape) -> Numerics:
    """What a launch sets besides sizes, where it differs from a plain decoder."""
    values: dict[str, Value] = {}
    kinds = {"llama3"} if flags.on("--use-rope-scaling") else set[str]()
    if "yarn" in (flags.word("--position-embedding-type"), flags.word("--rope-type")):
        kinds = {"yarn"}
    elif "--rotary-seq-len-interpolation-factor" in flags.given:
        kinds = {"linear"}
    if scaling := kinds & {"yarn", "linear"}:
        values["rope_type"] = scaling.pop()
    traits = _traits(shape, Numerics()) | kinds
    for row in rows(kind, "numerics"):
        if row.applies(traits) and not row.by_code and (value := row.read(flags)) is not None:
            values[row.field] = value

    return Numerics(values={name: value for name, value in values.items() if value != NEUTRAL.get(name)})


def _traits(shape: TransformerShape, numerics: Numerics) -> set[str]:
    """Words used in the table's ``when`` that apply to a model."""
    mixer = shape.attention
    latent = isinstance(mixer, LatentAttentionMixer)
    rotated = mixer is not None and (latent or bool(getattr(mixer, "rotary_dim", 0)))
    ffn = shape.dense_ffn or (shape.moe_ffn.expert if shape.moe_ffn else None)
    out = {"latent" if latent else "plain", str(numerics.get("router_score"))}
    out |= {"moe"} if shape.moe_ffn is not None else set()
    out |= {norm.kind.name.lower() for norm in shape.main.norms}
    out |= {"gated"} if isinstance(ffn, DenseFfn) and ffn.gated else set()
    return out | ({"rope", str(numerics.get("rope_type"))} if rotated else set())


def _effective(shape: TransformerShape, numerics: Numerics) -> dict[str, Value]:
    """The values, without scales that equal attention's usual one, 1 / sqrt(head_dim)."""
    values, head_dim = dict(numerics.values), float(shape.head_dim)
    if values.get("query_scale") == head_dim:
        del values["query_scale"]
    for name in ("attention_multiplier", "attention_scale"):
        scale = values.get(name)
        if isinstance(scale, float) and abs(scale - head_dim**-0.5) < 1e-9:
            del values[name]
    return values


def _without_effect(name: str, traits: set[str]) -> bool:
    """Whether a field concerns a part that the model does not have."""
    of_experts = name.startswith(("router_", "aux_loss", "z_loss"))
    of_rope, of_scaling = name.startswith("rope_"), name.startswith(SCALING) and not traits & SCALED
    return (of_experts and "moe" not in traits) or (of_rope and "rope" not in traits) or of_scaling


SCALING = ("rope_factor", "rope_low_", "rope_high_", "rope_original_", "rope_beta_", "rope_truncate", "rope_mscale")
SCALED = {"llama3", "yarn", "linear", "dynamic", "longrope", "su", "ntk"}
