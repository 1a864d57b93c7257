"""From words and numbers to a ``DesignQuestion``: defaults filled in, each of them said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sartor.cost.chip.ownership import USD_PER_KWH, YEARS
from sartor.designs.experts import expert_plan
from sartor.designs.question import (
    HBM_USD_PER_GB,
    AreaModel,
    Budgets,
    DesignCosts,
    DesignModel,
    DesignQuestion,
    Mean,
    Objective,
)
from sartor.designs.space import AcceleratorSpace
from sartor.errors import InputError
from sartor.model.defaults import seq_len_notes, usual_seq_len
from sartor.model.shape import TransformerShape
from sartor.model.training import Recompute

MICROBATCH_SIZES = (1, 2, 4, 8)
TENSOR_PARALLEL = (1, 2, 4, 8)
RECOMPUTES = ("none", "full")


def design_models(
    shapes: Sequence[TransformerShape],
    num_devices: int,
    seq_len: int | Sequence[int] | None = None,
    weights: Sequence[float] = (),
    tensor_parallel: Sequence[int] = TENSOR_PARALLEL,
) -> tuple[tuple[DesignModel, ...], tuple[str, ...]]:
    """The models with their sequence lengths and weights, and what was assumed.

    ``seq_len`` is one number for all or one per model. Raises ``InputError``.
    """
    if not shapes:
        raise InputError("model", "not given", "name the models to train", "gpt3-175b")
    lengths = _each("seq_len", seq_len, len(shapes))
    shares = _each("weights", tuple(weights) or None, len(shapes))
    models, notes = list[DesignModel](), list[str]()
    for shape, length, weight in zip(shapes, lengths, shares, strict=True):
        tokens = length if length is not None else usual_seq_len(shape)
        name = shape.name or f"model {len(models) + 1}"
        notes += [f"{name}: {note}" for note in seq_len_notes(length, tokens, shape)]
        models.append(
            DesignModel(
                name=name,
                shape=shape,
                seq_len=tokens,
                widths=tuple(dict.fromkeys(tensor_parallel)),
                weight=1.0 if weight is None else weight,
                expert=expert_plan(name, num_devices),
            )
        )
    return tuple(models), tuple(notes)


def design_question(
    models: tuple[DesignModel, ...],
    space: AcceleratorSpace,
    *,
    num_devices: int,
    global_batch_size: int,
    area_mm2: float | None = None,
    power_w: float | None = None,
    hbm_bytes: float | None = None,
    energy_j_per_token: float | None = None,
    objective: str = "throughput",
    mean: str = "geometric",
    microbatch_sizes: Sequence[int] = MICROBATCH_SIZES,
    recompute: Sequence[str] = RECOMPUTES,
    area_model: str | None = None,
    wafer_usd: float | None = None,
    hbm_usd_per_gb: float = HBM_USD_PER_GB,
    years: float = YEARS,
    usd_per_kwh: float = USD_PER_KWH,
    plausibility: bool = True,
) -> DesignQuestion:
    """The question in the words of the command line. Raises ``InputError``."""
    budgets = Budgets(
        area_mm2=area_mm2,
        power_w=power_w,
        hbm_bytes=hbm_bytes,
        energy_j_per_token=energy_j_per_token,
        plausible=plausibility,
    )
    area = space.area_model if area_model is None else word(AreaModel, "area_model", area_model)
    return DesignQuestion(
        models=models,
        num_devices=num_devices,
        global_batch_size=global_batch_size,
        microbatch_sizes=tuple(dict.fromkeys(microbatch_sizes)),
        recomputes=tuple(dict.fromkeys(_recompute(each) for each in recompute)),
        budgets=budgets,
        objective=word(Objective, "objective", objective),
        mean=word(Mean, "mean", mean),
        costs=DesignCosts(
            area=area,
            wafer_usd=wafer_usd,
            hbm_usd_per_gb=hbm_usd_per_gb,
            years=years,
            usd_per_kwh=usd_per_kwh,
        ),
    )


def word(enum: Any, field: str, text: str) -> Any:
    """A word as the member it names; ``-`` and ``_`` are one."""
    wanted = str(text).lower().replace("-", "_")
    for member in enum:
        if member.value == wanted:
            return member
    known = ", ".join(member.value.replace("_", "-") for member in enum)
    raise InputError(field, text, f"must be one of {known}")


def _recompute(text: str) -> Recompute:
    for each in (Recompute.NONE, Recompute.FULL):
        if each.word == str(text).lower():
            return each
    raise InputError("recompute", text, "must be none, full or both with a comma", "none,full")


def _each(field: str, given: Any, count: int) -> list[Any]:
    """One value per model from one for all, one each, or none."""
    if given is None or isinstance(given, int | float):
        return [given] * count
    values = list(given)
    if len(values) == 1:
        return values * count
    if len(values) != count:
        must = f"must hold one value, or one for each of the {count} models"
        raise InputError(field, ",".join(map(str, values)), must, ",".join(["1"] * count) if "weight" in field else "")
    return values
