"""``design``: which accelerator and plan go best together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from sartor.answers.design import DesignAnswer
from sartor.api.models import Model, read_each
from sartor.api.words import device_of, seconds, size_of
from sartor.designs.options import DesignOptions, QuestionOptions, SpaceOptions
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.model.workload import ModelReading
from sartor.options import completed, declared, part_of, with_options
from sartor.run.fields import FIELDS

if TYPE_CHECKING:
    from sartor.designs.baselines import NamedChip
    from sartor.designs.candidates import Keep
    from sartor.designs.candidates import Progress as DesignProgress
    from sartor.designs.front import NamedSearch
    from sartor.designs.question import DesignQuestion
    from sartor.designs.shapes import ShapeDesign
    from sartor.designs.space import AcceleratorSpace
    from sartor.engine.run import Beside, EveryShape
    from sartor.hardware.accelerator import Accelerator
    from sartor.hardware.gpu import Gpu

T = TypeVar("T")


BESIDE = ("h100_sxm", "tpu_v5p")
"""Default chips to compare a design with: a GPU and a TPU, of 2022 and 2023."""


@with_options(DesignOptions, FIELDS)
def design(
    model: Model | Sequence[Model],
    *,
    num_devices: int,
    progress: Callable[[DesignProgress], None] | None = None,
    **options: Unpack[DesignOptions],
) -> DesignAnswer:
    """Which accelerator and plan go best together: the largest throughput in a space, with its proof.

    The search ends when nothing can be better by more than ``tolerance``, or after ``time_limit`` seconds with the best
    so far and a bound on how much better the optimum can be.

    Parameters
    ----------
    model
        One model or several, each as in `sartor.estimate`.
    num_devices
        Devices of the whole system.
    progress
        Called after each step of the search.
    **options
        The space, the jobs, budgets, and how to search. Several values of an axis of the plan are all tried.

    Returns
    -------
    DesignAnswer
        ``result``: the best chip and a plan for each model, the objective with its proved bound, and the status ("no
        point fits" is one); the Pareto front, other shapes and catalogue GPUs where they were asked for.

    Raises
    ------
    InputError
        For a space, model or budget that cannot be, in one sentence that names the field.

    Examples
    --------
    >>> small = {"space": "examples/design/space.toml", "tp": (1,), "recompute": ("none",), "baselines": False}
    >>> answer = design("gpt2", num_devices=8, global_batch_size=32, microbatch_size=(4,), **small)
    >>> answer.result.status.value
    'optimal'
    """
    from sartor.designs.against import against, cluster_of
    from sartor.designs.baselines import chip_baselines
    from sartor.designs.sensitivity import cautions, left_out, nearby
    from sartor.engine.run import run_whole

    settings = completed(DesignOptions, options)
    readings = read_each(model, settings["set"])
    space = _space(settings["space"])
    question, phases, notes = _question(readings, space, size_of("num_devices", num_devices, 1), settings)
    if not 0 <= settings["tolerance"] < 1:
        raise InputError("tolerance", settings["tolerance"], "must be a share from 0 to below 1", "0.01")
    devices = [_by_name("against", device_of, name) for name in settings["against"] or ()]
    gpus = [device for device in devices if device.accelerator is None]
    for gpu in gpus:
        cluster_of(gpu, question.num_devices)
    whole = run_whole(
        question,
        space,
        _beside(question, space, settings),
        time_limit_s=seconds("time_limit", settings["time_limit"]),
        tolerance=settings["tolerance"],
        study=settings["study"],
        executor=settings["executor"],
        workers=settings["workers"],
        on_progress=progress,
    )
    if whole.joint is not None:
        shape_notes = (note for shape in whole.joint.shapes for note in shape.axes.assumptions)
        question, notes = whole.joint.question, (*notes, *dict.fromkeys(shape_notes))
    if settings["against"] is None and settings["baselines"] and not whole.result.interrupted:
        gpus = [load_gpu(name) for name in BESIDE]
    rivals, of_rivals = _rivals(devices, space)
    known = _reading_notes(readings)
    beside, unpriced = against(question, whole.result.best, gpus, named=settings["against"] is not None)
    return DesignAnswer(
        readings=tuple(reading for reading in readings for _ in range(phases)),
        question=question,
        space=space,
        result=replace(whole.result, baselines=(*whole.result.baselines, *chip_baselines(question, rivals))),
        proved_front=whole.front,
        shapes=whole.shapes,
        joint=whole.joint,
        against=beside,
        rivals=tuple(rival.name for rival in rivals),
        nearby=nearby(question, space, whole.result) if settings["sensitivity"] else None,
        studied=settings["study"] is not None,
        warnings=cautions(question, space, whole.result),
        assumptions=(*known, *notes, *space.assumptions, *left_out(question, space), *unpriced, *of_rivals),
    )


def _by_name(field: str, load: Callable[[Any], T], name: Any) -> T:
    """A device by name or file; an unknown name is an error of the option it came from."""
    try:
        return load(name)
    except InputError as error:
        if error.field not in ("gpu", "accelerator"):
            raise
        raise InputError(field, error.value, error.must, error.nearest) from None


def _rivals(devices: Sequence[Gpu], space: AcceleratorSpace) -> tuple[list[NamedChip], list[str]]:
    """The chips to compare with, and in words what their files leave open of long runs: they then sustain what the
    space's chips do."""
    from sartor.hardware.accelerator import IN_LONG_RUNS
    from sartor.hardware.accelerator_catalog import NUMBERS

    rivals, words = [], []
    for device in devices:
        if device.accelerator is None:
            continue
        keys = [key for key in device.template_keys if NUMBERS.get(key, ("",))[0] in IN_LONG_RUNS]
        shares = {NUMBERS[key][0]: getattr(space.groups[0], NUMBERS[key][0]) for key in keys}
        rivals.append(_named(device.name, replace(device.accelerator, **shares)))
        if keys:
            said = ", ".join(f"{key}={shares[NUMBERS[key][0]] / NUMBERS[key][1]:g}" for key in keys)
            words.append(f"{device.name}: {said} (as the space's chips: its file does not say)")
    return rivals, words


def _space(space: str | Path | AcceleratorSpace) -> AcceleratorSpace:
    from sartor.designs.space import AcceleratorSpace
    from sartor.read.space_file import load_space

    loaded = load_space(space) if isinstance(space, str | Path) else space
    if not isinstance(loaded, AcceleratorSpace):
        raise InputError("space", space, "must be a name, the path of a TOML file or an AcceleratorSpace", "modern")
    return loaded


def _question(
    readings: Sequence[ModelReading], space: AcceleratorSpace, num_devices: int, settings: DesignOptions
) -> tuple[DesignQuestion, int, tuple[str, ...]]:
    """The question, the number of phases of each model, and notes on what was assumed."""
    from sartor.ask.complete import TOKENS_PER_STEP, usual_batch
    from sartor.designs.ask import Jobs, design_models, design_question, objective_of

    shares, objective = objective_of(settings["objective"])
    jobs = Jobs(
        shares=shares,
        context_len=settings["context_len"],
        ttft_s=_milli("ttft_ms", settings["ttft_ms"]),
        tpot_s=_milli("tpot_ms", settings["tpot_ms"]),
    )
    shapes = [reading.shape for reading in readings]
    models, notes = design_models(shapes, num_devices, settings["seq_len"], settings["weights"], settings["tp"], jobs)
    stated = part_of(QuestionOptions, settings)
    if stated["global_batch_size"] is None and any(not model.served for model in models):
        batch = usual_batch(min(model.seq_len for model in models), num_devices, min(stated["microbatch_size"]))
        stated["global_batch_size"] = batch
        notes = (
            *notes,
            f"global_batch_size={batch}: {TOKENS_PER_STEP / 2**20:.0f}M tokens (usual; set --global-batch-size)",
        )
    question = design_question(tuple(models), space, num_devices=num_devices, objective=objective, **stated)
    return question, len(shares), notes


def _beside(question: DesignQuestion, space: AcceleratorSpace, settings: DesignOptions) -> Beside:
    """What is computed besides the best point. Raises ``InputError``."""
    from sartor.designs.front import check_axes
    from sartor.engine.run import Beside

    every_shape = settings["shapes"] == "all"
    if not every_shape:
        rows = declared(SpaceOptions)
        limits = {"params_tolerance": settings["params_tolerance"], "evidence": settings["evidence"]}
        for name, value in limits.items():
            if value != rows[name].default:
                raise InputError(name, value, "limits a search over all shapes", "--shapes all")
    joint = _every_shape(question, space, settings) if every_shape else None
    count = 0 if every_shape else _count(settings["shapes"])
    by_shape = partial(_by_shape, question, space, count, _fleet(settings["fleet"] or {})) if count else None
    axes = check_axes(settings["pareto"])
    return Beside(baselines=settings["baselines"], axes=axes, shapes=by_shape, every_shape=joint)


def _milli(field: str, milliseconds: float | None) -> float | None:
    """Milliseconds to seconds. Raises ``InputError``."""
    if milliseconds is None:
        return None
    if not 0 < milliseconds < float("inf"):
        raise InputError(field, milliseconds, "must be positive and finite", "20")
    return milliseconds / 1e3


def _reading_notes(readings: Sequence[ModelReading]) -> tuple[str, ...]:
    """Assumptions and notes from reading the models."""
    return tuple(
        f"{reading.shape.name}: {note}" for reading in readings for note in (*reading.assumptions, *reading.notes)
    )


def _fleet(fleet: Mapping[str, float]) -> list[tuple[NamedChip, float]]:
    """Existing accelerators with their weights. Raises ``InputError``."""
    from sartor.hardware.accelerator_catalog import load_accelerator

    chips = []
    for name, weight in fleet.items():
        chip = _by_name("fleet", load_accelerator, name)
        if not (weight > 0 and isfinite(weight)):
            raise InputError("fleet", f"{name}={weight:g}", "must have a weight above 0", f"{name}=1")
        chips.append((_named(name, chip), weight))
    return chips


def _named(name: str, chip: Accelerator) -> NamedChip:
    """An existing chip with its own memory."""
    from sartor.designs.baselines import NamedChip

    return NamedChip(name=name, accelerator=chip, hbm_bytes=(float(chip.hbm_bytes),))


def _count(shapes: int | str) -> int:
    """The number of shapes to try; 0: none. Raises ``InputError``."""
    if isinstance(shapes, bool) or not isinstance(shapes, int) or shapes < 0:
        raise InputError("shapes", shapes, "must be a whole number of at least 1, or all", "all")
    return shapes


def _every_shape(question: DesignQuestion, space: AcceleratorSpace, settings: DesignOptions) -> EveryShape:
    """A search over all shapes of each model's size. Raises ``InputError``."""
    from sartor.designs.shape_bounds import shape_axes
    from sartor.designs.shape_family import families, search_with_family
    from sartor.designs.shapes_proved import search_with_shapes
    from sartor.shapes.quality import QualityGuard

    if settings["fleet"]:
        must = "is compared with a number of shapes, not with all"
        raise InputError("fleet", ",".join(settings["fleet"]), must, "shapes=4")
    guard, tolerance = QualityGuard(width=settings["evidence"]), settings["params_tolerance"]
    models = [question.models[numbers[0]] for numbers in families(question)]
    axes = [shape_axes(m.shape, m.seq_len, m.widths, tolerance=tolerance, guard=guard) for m in models]
    if len(axes) == 1:
        return partial(search_with_shapes, question, space, axes[0])
    return partial(search_with_family, question, space, axes)


def _by_shape(
    question: DesignQuestion,
    space: AcceleratorSpace,
    count: int,
    fleet: Sequence[tuple[NamedChip, float]],
    search: NamedSearch,
    keep: Keep,
) -> ShapeDesign:
    """``count`` shapes of the model's size, on the chips of the space and the fleet."""
    from sartor.designs.shapes import search_design_shapes, shape_variants

    model = question.models[0]
    gpus = [load_gpu(name) for name in ("a100_sxm", "h100_sxm")]
    variants = shape_variants(model.shape, model.seq_len, gpus, count)
    return search_design_shapes(question, space, variants, fleet, search=search, keep=keep)
