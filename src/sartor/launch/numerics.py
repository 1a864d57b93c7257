"""What a model computes beyond its sizes, as a trainer's arguments and back, by the rows of ``fields.toml``.

Every field that differs from a plain decoder's is written, or the launch is refused: a file that trains another model
than the one priced would be worse than none.
"""

from __future__ import annotations

from sartor.errors import InputError
from sartor.launch.fields import Argument, rows, text_of
from sartor.launch.plan import LaunchKind
from sartor.launch.stated import Flags
from sartor.model.layer import DenseFfn, LatentAttentionMixer
from sartor.model.shape import NEUTRAL, Numerics, TransformerShape, Value

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
    notes = [] if shape.numerics.compared else [_unchecked(shape)]
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


def _unchecked(shape: TransformerShape) -> str:
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
    return (of_experts and "moe" not in traits) or (name.startswith("rope_") and "rope" not in traits)
