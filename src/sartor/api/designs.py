"""``design``: which accelerator and plan go best together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from sartor.answers import DesignAnswer
from sartor.api.models import Model, read_each
from sartor.api.words import GpuLike, device_of, seconds, size_of
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.model.reading import ModelReading
from sartor.units import GIB

if TYPE_CHECKING:
    from sartor.designs.baselines import NamedChip
    from sartor.designs.front import NamedSearch
    from sartor.designs.question import DesignQuestion
    from sartor.designs.result import Keep
    from sartor.designs.result import Progress as DesignProgress
    from sartor.designs.shapes import ShapeDesign
    from sartor.designs.space import AcceleratorSpace
    from sartor.engine.run import EveryShape


BESIDE = ("h100_sxm", "tpu_v5p")
"""Default chips to compare a design with: a GPU and a TPU, of 2022 and 2023."""


def design(
    model: Model | Sequence[Model],
    *,
    num_devices: int,
    global_batch_size: int | None = None,
    seq_len: int | Sequence[int] | None = None,
    context_len: int | None = None,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    weights: Sequence[float] = (),
    space: str | Path | AcceleratorSpace = "published",
    hbm_gib: float | None = None,
    tp: Sequence[int] = (1, 2, 4, 8),
    time_limit: float | None = None,
    tolerance: float = 0.0,
    baselines: bool = True,
    pareto: Sequence[str] = (),
    shapes: int | str = 0,
    params_tolerance: float = 0.01,
    evidence: float = 1.0,
    fleet: Mapping[str, float] | None = None,
    against: Sequence[GpuLike] | None = None,
    area_mm2: float | None = None,
    power_w: float | None = None,
    energy_j_per_token: float | None = None,
    objective: str = "throughput",
    mean: str = "geometric",
    microbatch_size: Sequence[int] = (1, 2, 4, 8),
    recompute: Sequence[str] = ("none", "full"),
    optimizer: str = "adam",
    zero_stage: Sequence[int] = (0, 1, 2, 3),
    cp: Sequence[int] = (1, 2),
    virtual_stages: Sequence[int] = (1, 2, 4),
    area_model: str | None = None,
    wafer_usd: float | None = None,
    hbm_usd_per_gb: float | None = None,
    years: float | None = None,
    usd_per_kwh: float | None = None,
    plausibility: bool = True,
    sensitivity: bool = False,
    set: Mapping[str, int | str] | None = None,
    study: str | Path | None = None,
    executor: str = "serial",
    workers: int | None = None,
    progress: Callable[[DesignProgress], None] | None = None,
) -> DesignAnswer:
    """Which accelerator and plan go best together: the largest throughput in a space, with its proof.

    ``space`` is a name (``sartor catalog spaces``), a TOML file or an ``AcceleratorSpace``; ``seq_len`` and ``weights``
    are one for all models or one each; ``hbm_gib`` limits the memory of a device. The search ends when nothing can be
    better by more than ``tolerance``, or after ``time_limit`` seconds with the best so far and a bound on how much
    better the optimum can be. ``study`` is a file of all results, from which a search can resume; ``executor`` is
    ``serial``, ``local`` (processes) or a Dask scheduler's address. ``baselines``: also price known chips and other
    ways to search (a minute or two). ``pareto``: the front over area_mm2, power_w, hbm_bytes or usd. ``shapes``: try
    this many shapes of the one model's size, each on the whole space and on the chips of ``fleet`` (catalogue name or
    file -> weight); ``"all"``: layers, heads, head size and widths of every model become axes of the space, within
    ``params_tolerance`` of its parameters and a quality guard of width ``evidence``, and the best shapes are part of
    the proof. ``against``: catalogue GPUs on the same jobs, each under the plan that `plan` would choose (default:
    `BESIDE`, if ``baselines``). ``area_mm2``, ``power_w`` and ``energy_j_per_token`` are budgets of one device;
    ``objective`` is maximized (throughput, throughput_per_watt, ...; or, instead of throughput, prefill, decode or
    ``train:0.7,decode:0.3``, with ``ttft_ms`` and ``tpot_ms`` as limits on the time to first token and per further
    token, after ``context_len`` tokens); ``mean`` says how to average several models; ``microbatch_size``,
    ``recompute``, ``zero_stage``, ``cp`` and ``virtual_stages`` are tried in every plan of training with ``optimizer``
    (adam, sgd); ``area_model``, ``wafer_usd`` and ``hbm_usd_per_gb`` set what a chip costs,
    ``years`` of use and ``usd_per_kwh`` what owning it costs (objective throughput_per_ownership_dollar). Without
    ``plausibility``, chips that cannot be built are priced too, and the best is marked if it is one. ``sensitivity``:
    which values of each axis come within 1% of the best, and whether it stays ahead of the next best chips with an
    assumed rate 30% higher or lower. Raises ``InputError``; "no point fits" is an answer.
    """
    given = dict(locals())
    from sartor.designs.against import against as beside_chips
    from sartor.designs.against import cluster_of
    from sartor.designs.ask import Jobs, design_models, design_question, objective_of
    from sartor.designs.front import check_axes
    from sartor.designs.sensitivity import cautions, left_out, nearby
    from sartor.designs.space import AcceleratorSpace
    from sartor.engine.run import Beside, run_whole
    from sartor.read.space_file import load_space

    readings = read_each(model, set)
    chosen = load_space(space) if isinstance(space, str | Path) else space
    if not isinstance(chosen, AcceleratorSpace):
        raise InputError("space", space, "must be a name, the path of a TOML file or an AcceleratorSpace", "published")
    devices = size_of("num_devices", num_devices, 1)
    shares, per = objective_of(objective)
    jobs = Jobs(
        shares=shares, context_len=context_len, ttft_s=_milli("ttft_ms", ttft_ms), tpot_s=_milli("tpot_ms", tpot_ms)
    )
    asked, notes = design_models([reading.shape for reading in readings], devices, seq_len, weights, tp, jobs)
    if hbm_gib is not None and not 0 < hbm_gib < float("inf"):
        raise InputError("hbm_gib", hbm_gib, "must be positive and finite", "96")
    question = design_question(
        tuple(asked),
        chosen,
        num_devices=devices,
        hbm_bytes=None if hbm_gib is None else hbm_gib * GIB,
        objective=per,
        **{name: given[name] for name in OF_THE_QUESTION},
    )
    if not 0 <= tolerance < 1:
        raise InputError("tolerance", tolerance, "must be a share from 0 to below 1", "0.01")
    gpus = [device_of(gpu) for gpu in against or ()]
    for gpu in gpus:
        cluster_of(gpu, devices)
    for name, value, usual in (("params_tolerance", params_tolerance, 0.01), ("evidence", evidence, 1.0)):
        if shapes != "all" and value != usual:
            raise InputError(name, value, "limits a search over all shapes", "--shapes all")
    every = _every_shape(question, chosen, params_tolerance, evidence, fleet) if shapes == "all" else None
    few = 0 if every else _count(shapes)
    by_shape = partial(_by_shape, question, chosen, few, _fleet(fleet or {})) if few else None
    found = run_whole(
        question,
        chosen,
        Beside(baselines=baselines, axes=check_axes(pareto), shapes=by_shape, every_shape=every),
        time_limit_s=seconds("time_limit", time_limit),
        tolerance=tolerance,
        study=study,
        executor=executor,
        workers=workers,
        on_progress=progress,
    )
    if found.joint is not None:
        said = (note for each in found.joint.shapes for note in each.axes.assumptions)
        question, notes = found.joint.question, (*notes, *dict.fromkeys(said))
    if against is None and baselines and not found.result.interrupted:
        gpus = [load_gpu(name) for name in BESIDE]
    beside, unpriced = beside_chips(question, found.result.best, gpus, named=against is not None)
    return DesignAnswer(
        readings=tuple(reading for reading in readings for _ in shares),
        question=question,
        space=chosen,
        result=found.result,
        proved_front=found.front,
        shapes=found.shapes,
        joint=found.joint,
        against=beside,
        nearby=nearby(question, chosen, found.result) if sensitivity else None,
        warnings=cautions(question, chosen, found.result),
        assumptions=(*_said_of(readings), *notes, *chosen.assumptions, *left_out(question, chosen), *unpriced),
    )


OF_THE_QUESTION = (
    "global_batch_size", "area_mm2", "power_w", "energy_j_per_token", "mean", "microbatch_size", "recompute",
    "optimizer", "zero_stage", "cp", "virtual_stages", "area_model", "wafer_usd", "hbm_usd_per_gb", "years",
    "usd_per_kwh", "plausibility",
)  # fmt: skip
"""Arguments that `design_question` takes as they are."""


def _milli(field: str, milliseconds: float | None) -> float | None:
    """Milliseconds to seconds. Raises ``InputError``."""
    if milliseconds is None:
        return None
    if not 0 < milliseconds < float("inf"):
        raise InputError(field, milliseconds, "must be positive and finite", "20")
    return milliseconds / 1e3


def _said_of(readings: Sequence[ModelReading]) -> tuple[str, ...]:
    """Assumptions and notes from reading the models."""
    return tuple(
        f"{reading.shape.name}: {note}" for reading in readings for note in (*reading.assumptions, *reading.notes)
    )


def _fleet(fleet: Mapping[str, float]) -> list[tuple[NamedChip, float]]:
    """Existing accelerators with their weights. Raises ``InputError``."""
    from sartor.designs.baselines import NamedChip
    from sartor.hardware.accelerator_catalog import load_accelerator

    chips = []
    for name, weight in fleet.items():
        chip = load_accelerator(name)
        if not (weight > 0 and isfinite(weight)):
            raise InputError("fleet", f"{name}={weight:g}", "must have a weight above 0", f"{name}=1")
        chips.append((NamedChip(name=name, accelerator=chip, hbm_bytes=(float(chip.hbm_bytes),)), weight))
    return chips


def _count(shapes: int | str) -> int:
    """The number of shapes to try; 0: none. Raises ``InputError``."""
    if isinstance(shapes, bool) or not isinstance(shapes, int) or shapes < 0:
        raise InputError("shapes", shapes, "must be a whole number of at least 1, or all", "all")
    return shapes


def _every_shape(
    question: DesignQuestion,
    space: AcceleratorSpace,
    tolerance: float,
    evidence: float,
    fleet: Mapping[str, float] | None,
) -> EveryShape:
    """A search over all shapes of each model's size. Raises ``InputError``."""
    from sartor.designs.shape_axes import shape_axes
    from sartor.designs.shape_family import families, search_with_family
    from sartor.designs.shapes_proved import search_with_shapes
    from sartor.shapes.quality import QualityGuard

    if fleet:
        raise InputError("fleet", ",".join(fleet), "is compared with a number of shapes, not with all", "shapes=4")
    models, guard = [question.models[numbers[0]] for numbers in families(question)], QualityGuard(width=evidence)
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
