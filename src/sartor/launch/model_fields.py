"""Convert what a model computes beyond its sizes to a trainer's arguments and back, using ``model_fields.toml``.

Every field that differs from a plain decoder's is written, or the launch is refused: a file that trains another model
than the one priced would be worse than none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from sartor.bounded import packaged_toml
from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.launch.flags import Flags
from sartor.launch.plan import LaunchKind
from sartor.model.layer import DenseFfn, LatentAttentionMixer
from sartor.model.numerics import NEUTRAL, Numerics, Value
from sartor.model.shape import TransformerShape

Argument = tuple[str, ...]
OWN_CONFIG = "a trainer that reads the model's own config (--write deepspeed or accelerate)"
OF_SHAPE = {"activation", "norm_order"}
"""Fields written by the functions that write the shape."""
BALANCE = {"aux_loss", "aux_loss_per_sequence", "router_bias"}
"""Fields that balance experts in training; none but the bias changes a trained model's forward pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRow:
    """One row of the table: a field, and a trainer's argument for it."""

    field: str
    argument: str = ""
    since: str = ""
    default: Value = ""
    when: str = ""
    only: tuple[Value, ...] = ()
    flag: Value | None = None
    words: Mapping[str, str] | None = None
    whole: bool = False
    always: bool = False
    by_shape: bool = False
    """Whether it is written and read with the shape's own arguments."""

    def applies(self, traits: set[str]) -> bool:
        return set(self.when.split()) <= traits

    def said(self, value: Value) -> Iterator[Argument]:
        """The argument for a value; none if it is the trainer's default."""
        if not self.argument or self.by_shape or (value == self.default and not self.always):
            return
        if self.flag is not None:
            if value == self.flag:
                yield (self.argument,)
        else:
            yield (self.argument, (self.words or {}).get(_text(value), _text(value)))

    def refused(self, value: Value) -> str:
        """Why a value cannot be expressed; empty if it can."""
        if self.only and value not in self.only:
            return "has " + " or ".join(_text(v) or "none" for v in self.only) + " alone"
        if self.whole and isinstance(value, float) and not value.is_integer():
            return f"takes whole numbers by {self.argument}"
        return ""

    def read(self, flags: Flags) -> Value:
        """The value given by a command line."""
        if not self.argument or self.by_shape:
            return self.default
        if self.flag is not None:
            return self.flag if flags.on(self.argument) else self.default
        if self.words or isinstance(self.default, str):
            word = flags.word(self.argument)
            names = {text: name for name, text in (self.words or {}).items()}
            known = names.get(word or "", word or "")
            return self.default if word is None else {"true": True, "false": False}.get(known, known)
        found = flags.number(self.argument, float(self.default))
        return int(found) if self.whole else found


def numeric_arguments(
    kind: LaunchKind, shape: TransformerShape, fixed: Numerics | None = None
) -> tuple[list[Argument], list[str]]:
    """The arguments for what the model computes beyond its sizes, and notes. ``fixed`` is what the trainer's own model
    of these sizes computes. Raises `InputError` for a field without an argument."""
    if shape.numerics is None:
        return [], ["norm epsilon, rotary base and scaling are not known of this model: the trainer's defaults stand"]
    values, traits = _effective(shape, shape.numerics), _traits(shape, shape.numerics)
    rows = [row for row in field_rows(kind) if row.applies(traits)]
    out: list[Argument] = []
    for row in rows:
        value = values.get(row.field, NEUTRAL.get(row.field, row.default))
        if why := row.refused(value):
            raise _cannot(kind, shape, row.field, value, why)
        out += row.said(value)
    own = fixed or Numerics()
    known = {row.field for row in rows} | OF_SHAPE
    balance: list[str] = []
    for name in [each for each in dict.fromkeys([*values, *own.values]) if each not in known]:
        there = own.get(name)
        value = values.get(name, NEUTRAL.get(name, False))
        if value == there or _without_effect(name, traits):
            continue
        if fixed is None or name not in BALANCE:
            raise _cannot(kind, shape, name, value, "has no argument for it" if fixed is None else _other(there))
        balance.append(f"{name}={_text(there or 0.0)}, not {_text(value)}")
    notes = [] if shape.numerics.compared else [_unchecked(shape)]
    notes += [f"{kind.title} balances experts in its own way: {'; '.join(balance)}"] if balance else []
    return out, notes


def _other(value: Value | None) -> str:
    if value is None:
        return "has no argument for it"
    return f"has {_text(value) or 'that of a plain decoder'} in its own model of these sizes"


def _cannot(kind: LaunchKind, shape: TransformerShape, name: str, value: Value, why: str) -> InputError:
    field_, neutral = name.removeprefix("config."), NEUTRAL.get(name)
    near = OWN_CONFIG if not neutral else f"{field_}={_text(neutral)}, or {OWN_CONFIG}"
    return InputError(f"{shape.name or 'MODEL'}: {field_}", _text(value), f"{kind.title} {why}", near)


def _unchecked(shape: TransformerShape) -> str:
    return (
        f"model_type={shape.model_type}: sizes and known fields are written, but what this family's own code computes "
        "beside them was not compared with the trainer's model; check it before training"
    )


def read_numerics(kind: LaunchKind, flags: Flags, shape: TransformerShape) -> Numerics:
    """What a launch sets besides sizes, where it differs from a plain decoder."""
    found: dict[str, Value] = {}
    kinds = {"llama3"} if flags.on("--use-rope-scaling") else set[str]()
    if "yarn" in (flags.word("--position-embedding-type"), flags.word("--rope-type")):
        kinds = {"yarn"}
    elif "--rotary-seq-len-interpolation-factor" in flags.given:
        kinds = {"linear"}
    if scaling := kinds & {"yarn", "linear"}:
        found["rope_type"] = scaling.pop()
    traits = _traits(shape, Numerics()) | kinds
    for row in field_rows(kind):
        if row.applies(traits) and not row.by_shape:
            found[row.field] = row.read(flags)
    return Numerics(values={name: value for name, value in found.items() if value != NEUTRAL.get(name)})


def first_release(kind: LaunchKind, argument: str) -> str:
    """The first release with an argument; empty if the table does not give it."""
    rows = {row.argument: row.since for row in field_rows(kind)}
    return str(_table().get("since", {}).get(kind.value, {}).get(argument, rows.get(argument, "")))


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
    return (of_experts and "moe" not in traits) or (name.startswith("rope_") and "rope" not in traits)


@cache
def field_rows(kind: LaunchKind) -> tuple[FieldRow, ...]:
    """The table of one trainer."""
    return tuple(FieldRow(**{**row, "only": tuple(row.get("only", ()))}) for row in _table().get(kind.value, ()))


@cache
def _table() -> JsonDict:
    return packaged_toml("launch", "model_fields.toml")


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else f"{value:.10g}"
