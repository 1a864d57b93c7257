"""From words and numbers to a ``DesignQuestion``: fills in defaults and reports each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Unpack

import numpy as np

from sartor.cost.chip.ownership import USD_PER_KWH, YEARS
from sartor.designs.options import JobOptions, QuestionOptions
from sartor.designs.question import (
    HBM_USD_PER_GB,
    LIMITS,
    AreaModel,
    Budgets,
    DesignCosts,
    DesignModel,
    DesignQuestion,
    ExpertPlan,
    Mean,
    Objective,
)
from sartor.designs.space import AcceleratorSpace
from sartor.errors import InputError
from sartor.model.shape import TransformerShape
from sartor.model.training import Optimizer, Recompute
from sartor.model.workload import Phase, phase_weights, settled_seq_len
from sartor.options import completed, declared
from sartor.units import GIB

OF_TRAINING = (
    "global_batch_size", "microbatch_size", "recompute", "optimizer", "zero_stage", "cp", "virtual_stages",
)  # fmt: skip
"""Options that only training has."""


def design_models(
    shapes: Sequence[TransformerShape],
    num_devices: int,
    seq_len: int | Sequence[int] | None = None,
    weights: Sequence[float] = (),
    tensor_parallel: Sequence[int] = declared(JobOptions)["tp"].default,
    jobs: Jobs | None = None,
) -> tuple[tuple[DesignModel, ...], tuple[str, ...]]:
    """The models with their sequence lengths and weights, once for each of the ``jobs`` (default: training only), and
    the assumptions made.

    ``seq_len`` is one number for all or one per model. Raises ``InputError``.
    """
    jobs = jobs or Jobs()
    if not shapes:
        raise InputError("model", "not given", "name the models to train", "gpt3-175b")
    lengths = _per_model("seq_len", seq_len, len(shapes))
    shares = _per_model("weights", tuple(weights) or None, len(shapes))
    models, notes = list[DesignModel](), list[str]()
    for shape, length, weight in zip(shapes, lengths, shares, strict=True):
        tokens, length_notes = settled_seq_len(length, shape)
        name = shape.name or f"model {len(models) + 1}"
        notes += [f"{name}: {note}" for note in length_notes]
        design_model = DesignModel(
            name=name,
            shape=shape,
            seq_len=tokens,
            widths=tuple(dict.fromkeys(tensor_parallel)),
            weight=1.0 if weight is None else weight,
            expert=_expert_plan(name, num_devices),
        )
        for phase, share in jobs.shares.items():
            models.append(_in_phase(design_model, phase, share, jobs))
    return tuple(models), (*notes, *_said_of(jobs))


_PUBLISHED_DEVICES = 1024


_PUBLISHED: Mapping[str, ExpertPlan] = {
    "opt350m": ExpertPlan(pp=12, dp=85, tp=1),
    "bertlarge": ExpertPlan(pp=8, dp=128, tp=1),
    "megatronbert": ExpertPlan(pp=8, dp=128, tp=1),
    "gpt2xl": ExpertPlan(pp=32, dp=32, tp=1),
    "megatrongpt2xl": ExpertPlan(pp=8, dp=128, tp=1),
    "megatrongpt254": ExpertPlan(pp=8, dp=32, tp=4),
    "megatrongpt272": ExpertPlan(pp=8, dp=16, tp=8),
    "gpt3175b": ExpertPlan(pp=32, dp=8, tp=4),
    "llama27b": ExpertPlan(pp=8, dp=128, tp=1),
}
"""By squeezed name, on 1,024 devices (PHAZE, Solver/baseline_configs.py of its public code, version 1.0, June 2024;
reference/phaze.md sec. 8)."""


_LAUNCHED: Mapping[str, ExpertPlan] = {"deepseekv3": ExpertPlan(pp=16, dp=64, tp=1, ep=64)}
"""Launches by the models' authors: DeepSeek-V3 on 2,048 H800 with 16 stages and experts over 64 devices
(DeepSeek-AI 2024, arXiv 2412.19437, sec. 3.2), here with half the copies and without its ZeRO-1."""


def _expert_plan(name: str, num_devices: int) -> ExpertPlan | None:
    """The published expert's placement of a model by name on ``num_devices``; None if none is known.

    Another number of devices changes the number of copies, rounded down; stages and width stay.
    """
    plan = {**_PUBLISHED, **_LAUNCHED}.get(re.sub(r"[^a-z0-9]+", "", name.lower()))
    if plan is None:
        return None
    copies = plan.dp if num_devices == _PUBLISHED_DEVICES else num_devices // (plan.pp * plan.tp)
    return replace(plan, dp=copies // plan.ep * plan.ep) if copies >= plan.ep else None


def _in_phase(model: DesignModel, phase: Phase, share: float, jobs: Jobs) -> DesignModel:
    """The model in one phase of the jobs."""
    if phase is Phase.DECODE and model.shape.encoder_only:
        must = f"{model.name} is an encoder-only model, which does not decode"
        raise InputError("objective", phase.value, must, "throughput or prefill")
    context = (model.seq_len if jobs.context_len is None else jobs.context_len) if phase is Phase.DECODE else 0
    return replace(
        model,
        name=model.name if len(jobs.shares) == 1 else f"{model.name}, {phase.value}",
        weight=model.weight * share,
        phase=phase,
        context_len=context,
        latency_s={Phase.PREFILL: jobs.ttft_s, Phase.DECODE: jobs.tpot_s}.get(phase),
        expert=model.expert if phase is Phase.TRAIN else None,
    )


def _said_of(jobs: Jobs) -> tuple[str, ...]:
    if Phase.TRAIN in jobs.shares and len(jobs.shares) == 1:
        return ()
    return (
        "served: every copy of a model takes a batch of 1, 2, 4, ... or 1,024 sequences pass after pass on one "
        "tensor-parallel group, prompts and answers on devices of their own; "
        "queueing is not counted (`sartor serving` does)",
        "served: a layer's operators overlap on the cores; `sartor estimate` adds them up, a few percent more",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """What the devices do: shares of phases, and the latency limits of a serving pass."""

    shares: Mapping[Phase, float] = field(default_factory=lambda: {Phase.TRAIN: 1.0})
    context_len: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None

    def __post_init__(self) -> None:
        for phase, seconds in ((Phase.PREFILL, self.ttft_s), (Phase.DECODE, self.tpot_s)):
            if seconds is not None and phase not in self.shares:
                must = f"limits {phase.value}, which the objective does not name"
                raise InputError(LIMITS[phase], 1e3 * seconds, must, f"--objective {phase.value}")
        if self.context_len is not None and Phase.DECODE not in self.shares:
            raise InputError("context_len", self.context_len, "is of decode", "--objective decode")


def objective_of(text: str) -> tuple[dict[Phase, float], Objective]:
    """``decode-per-watt`` or ``train:0.7,decode:0.3``: shares of phases and the objective's divisor; ``throughput``
    without a phase is that of training. Raises ``InputError``."""
    what, *divisor = re.split("[-_]per[-_]", str(text).lower(), maxsplit=1)
    phases = {phase.value: phase for phase in Phase}
    shares = phase_weights(what) if ":" in what else {phases.get(what.strip(), Phase.TRAIN): 1.0}
    if what.strip() in phases or ":" in what:
        what = Objective.THROUGHPUT.value
    words = "_per_".join([what, *divisor]).replace("-", "_")
    if words not in [member.value for member in Objective]:
        choices = ", ".join(member.value.replace("_", "-") for member in Objective)
        close = get_close_matches(words.replace("_", "-"), [*choices.split(", "), *phases], 1, 0.8)
        raise InputError(
            "objective",
            text,
            f"must be one of {choices}, or with train, prefill, decode or shares of them in throughput's place",
            close[0] if close else Objective.THROUGHPUT.value,
        )
    return shares, Objective(words)


def design_question(
    models: tuple[DesignModel, ...],
    space: AcceleratorSpace,
    *,
    num_devices: int,
    objective: Objective = Objective.THROUGHPUT,
    **options: Unpack[QuestionOptions],
) -> DesignQuestion:
    """The question in the words of the command line. Raises ``InputError``."""
    settings = completed(QuestionOptions, options)
    global_batch_size, microbatch_sizes = settings["global_batch_size"], settings["microbatch_size"]
    if global_batch_size is None and not all(model.served for model in models):
        raise InputError("global_batch_size", "not given", "is required for training", "4096")
    if all(model.served for model in models):
        _refuse_training_options(settings)
    budgets = _budgets(settings)
    if num_devices > 1 and any(np.any(np.asarray(group.num_links) == 0) for group in space.groups):
        raise InputError("num_links", 0, f"must be at least 1 for each chip, to join {num_devices} devices", "1")
    return DesignQuestion(
        models=models,
        num_devices=num_devices,
        global_batch_size=max(microbatch_sizes) if global_batch_size is None else global_batch_size,
        microbatch_sizes=tuple(dict.fromkeys(microbatch_sizes)),
        recomputes=tuple(dict.fromkeys(_recompute(text) for text in settings["recompute"])),
        optimizer=_word(Optimizer, "optimizer", settings["optimizer"]),
        zero_stages=tuple(dict.fromkeys(settings["zero_stage"])) or (0,),
        context_widths=tuple(dict.fromkeys(settings["cp"])) or (1,),
        virtual_stages=tuple(dict.fromkeys(settings["virtual_stages"])) or (1,),
        budgets=budgets,
        objective=objective,
        mean=_word(Mean, "mean", settings["mean"]),
        costs=_costs(space, settings),
        dtypes=space.dtypes,
    )


def _budgets(settings: QuestionOptions) -> Budgets:
    hbm_gib = settings["hbm_gib"]
    if hbm_gib is not None and not 0 < hbm_gib < float("inf"):
        raise InputError("hbm_gib", hbm_gib, "must be positive and finite", "96")
    return Budgets(
        area_mm2=settings["area_mm2"],
        power_w=settings["power_w"],
        hbm_bytes=None if hbm_gib is None else hbm_gib * GIB,
        energy_j_per_token=settings["energy_j_per_token"],
        plausible=settings["plausibility"],
    )


def _costs(space: AcceleratorSpace, settings: QuestionOptions) -> DesignCosts:
    """The space's own area model and usual prices where none are stated."""
    area, usd = settings["area_model"], settings["hbm_usd_per_gb"]
    years, per_kwh = settings["years"], settings["usd_per_kwh"]
    return DesignCosts(
        area=space.area_model if area is None else _word(AreaModel, "area_model", area),
        wafer_usd=settings["wafer_usd"],
        hbm_usd_per_gb=HBM_USD_PER_GB if usd is None else usd,
        years=YEARS if years is None else years,
        usd_per_kwh=USD_PER_KWH if per_kwh is None else per_kwh,
    )


def _refuse_training_options(settings: QuestionOptions) -> None:
    """Raise ``InputError`` for the first option of training that is not at its default."""
    rows, stated = declared(QuestionOptions), dict[str, Any](settings)
    for name in OF_TRAINING:
        value, default = stated[name], rows[name].default
        if value != default and not (isinstance(default, tuple) and tuple(value) == default):
            shown = value if isinstance(value, int | str) else ",".join(map(str, value))
            raise InputError(name, shown, "is of training, which the objective does not name", "--objective throughput")


def _word(enum: Any, field: str, text: str) -> Any:
    """The enum member that a word names; ``-`` and ``_`` are equal."""
    value = str(text).lower().replace("-", "_")
    for member in enum:
        if member.value == value:
            return member
    choices = ", ".join(member.value.replace("_", "-") for member in enum)
    raise InputError(field, text, f"must be one of {choices}")


def _recompute(text: str) -> Recompute:
    for recompute in (Recompute.NONE, Recompute.FULL):
        if recompute.word == str(text).lower():
            return recompute
    raise InputError("recompute", text, "must be none, full or both with a comma", "none,full")


def _per_model(field: str, stated: Any, count: int) -> list[Any]:
    """One value per model, given one for all, one each, or none."""
    if stated is None or isinstance(stated, int | float):
        return [stated] * count
    values = list(stated)
    if len(values) == 1:
        return values * count
    if len(values) != count:
        must = f"must hold one value, or one for each of the {count} models"
        raise InputError(field, ",".join(map(str, values)), must, ",".join(["1"] * count) if "weight" in field else "")
    return values
