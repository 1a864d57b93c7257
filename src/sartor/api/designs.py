"""The journey of a chip: which accelerator and plan go best together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sartor.answers import DesignAnswer
from sartor.api.models import Model, read
from sartor.api.words import GpuLike, device_of, seconds, size_of
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.model.reading import ModelReading
from sartor.units import GIB, JsonMap

if TYPE_CHECKING:
    from sartor.designs.chips import NamedChip
    from sartor.designs.front import NamedSearch
    from sartor.designs.keep import Keep
    from sartor.designs.question import DesignQuestion
    from sartor.designs.result import Progress as DesignProgress
    from sartor.designs.shapes import ShapeDesign
    from sartor.designs.space import AcceleratorSpace


def design(
    models: Model | Sequence[Model],
    *,
    num_devices: int,
    global_batch_size: int,
    seq_len: int | Sequence[int] | None = None,
    weights: Sequence[float] = (),
    space: str | Path | AcceleratorSpace = "published",
    hbm_gib: float | None = None,
    tensor_parallel: Sequence[int] = (1, 2, 4, 8),
    time_limit_s: float | None = None,
    tolerance: float = 0.0,
    baselines: bool = True,
    pareto: Sequence[str] = (),
    shapes: int = 0,
    fleet: Mapping[str, float] | None = None,
    against: Sequence[GpuLike] = (),
    set: JsonMap | None = None,
    study: str | Path | None = None,
    executor: str = "serial",
    workers: int | None = None,
    progress: Callable[[DesignProgress], None] | None = None,
    **words: Any,
) -> DesignAnswer:
    """Which accelerator and plan go best together: the largest training throughput of a space, with its proof.

    ``space`` is a name (``sartor catalog spaces``), a TOML file or an ``AcceleratorSpace``; ``seq_len`` and ``weights``
    are one for all models or one each; ``hbm_gib`` limits the memory of a device. The search ends when nothing can be
    better by more than ``tolerance``, or after ``time_limit_s`` with the best so far and how much better there could
    be. ``study`` is a file that remembers every result, so that a search goes on where it ended; ``executor`` is
    ``serial``, ``local`` (processes) or a Dask scheduler's address. ``baselines``: price known chips and other ways to
    search beside it (a minute or two). ``pareto``: the front over area_mm2, power_w, hbm_bytes or usd. ``shapes``: so
    many shapes of the one model's size in its place, each on the whole space, against the chips of ``fleet`` (catalogue
    name or file -> weight) too. ``against``: catalogue GPUs on the same jobs, each by the plan `plan` would choose.
    Further words are those of ``search.joint_ask.design_question``: area_mm2, power_w,
    energy_j_per_token, objective, mean, microbatch_sizes, recompute, area_model, wafer_usd, hbm_usd_per_gb. Raises
    ``InputError``; "no point fits" is an answer.
    """
    from sartor.designs.against import against as beside_chips
    from sartor.designs.against import cluster_of
    from sartor.designs.front import check_axes
    from sartor.engine.whole import Beside, run_whole
    from sartor.read.space_file import load_space

    names = [models] if isinstance(models, str | Path | ModelReading) else list(models)
    readings = tuple(read(name, set) for name in names)
    chosen = load_space(space) if isinstance(space, str | Path) else space
    memory = {"hbm_bytes": None if hbm_gib is None else hbm_gib * GIB}
    sizes = {"num_devices": num_devices, "global_batch_size": global_batch_size}
    question, notes = _asked(readings, chosen, seq_len, weights, tensor_parallel, {**sizes, **memory, **words})
    if not 0 <= tolerance < 1:
        raise InputError("tolerance", tolerance, "must be a share from 0 to below 1", "0.01")
    gpus = [device_of(gpu) for gpu in against]
    for gpu in gpus:
        cluster_of(gpu, question.num_devices)
    by_shape = partial(_by_shape, question, chosen, shapes, _fleet(fleet or {})) if shapes else None
    found = run_whole(
        question,
        chosen,
        Beside(baselines=baselines, axes=check_axes(pareto), shapes=by_shape),
        time_limit_s=seconds("time_limit_s", time_limit_s),
        tolerance=tolerance,
        study=study,
        executor=executor,
        workers=workers,
        on_progress=progress,
    )
    return DesignAnswer(
        readings=readings,
        question=question,
        space=chosen,
        result=found.result,
        proved_front=found.front,
        shapes=found.shapes,
        against=beside_chips(question, found.result.best, gpus),
        assumptions=(*_said_of(readings), *notes, *chosen.assumptions),
    )


def _asked(
    readings: Sequence[ModelReading],
    space: AcceleratorSpace,
    seq_len: int | Sequence[int] | None,
    weights: Sequence[float],
    tensor_parallel: Sequence[int],
    words: JsonMap,
) -> tuple[DesignQuestion, tuple[str, ...]]:
    """The question, and what was assumed of its models."""
    from sartor.designs.ask import design_models, design_question

    devices = size_of("num_devices", words["num_devices"], 1)
    shapes = [reading.shape for reading in readings]
    asked, notes = design_models(shapes, devices, seq_len, weights, tensor_parallel)
    return design_question(asked, space, **words), tuple(notes)


def _said_of(readings: Sequence[ModelReading]) -> tuple[str, ...]:
    """What was read into the models' files."""
    return tuple(
        f"{reading.shape.name}: {note}" for reading in readings for note in (*reading.assumptions, *reading.notes)
    )


def _fleet(fleet: Mapping[str, float]) -> list[tuple[NamedChip, float]]:
    """Accelerators that are there already, with their weights. Raises ``InputError``."""
    from sartor.designs.chips import NamedChip
    from sartor.hardware.accelerator_catalog import load_accelerator

    chips = []
    for name, weight in fleet.items():
        chip = load_accelerator(name)
        if not (weight > 0 and isfinite(weight)):
            raise InputError("--fleet", f"{name}={weight:g}", "must have a weight above 0", f"{name}=1")
        chips.append((NamedChip(name=name, accelerator=chip, hbm_bytes=(float(chip.hbm_bytes),)), weight))
    return chips


def _by_shape(
    question: DesignQuestion,
    space: AcceleratorSpace,
    count: int,
    fleet: Sequence[tuple[NamedChip, float]],
    search: NamedSearch,
    keep: Keep,
) -> ShapeDesign:
    """``count`` shapes of the model's size in its place, on the space's chips and those of the fleet."""
    from sartor.designs.shapes import search_design_shapes, shape_variants

    model = question.models[0]
    gpus = [load_gpu(name) for name in ("a100_sxm", "h100_sxm")]
    variants = shape_variants(model.shape, model.seq_len, gpus, count)
    return search_design_shapes(question, space, variants, fleet, search=search, keep=keep)
