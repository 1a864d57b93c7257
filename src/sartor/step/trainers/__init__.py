"""Trainers, one record each, and which one a user's name or a published run refers to.

A release is given after an @: ``nemo@26.06``, ``megatron@2021``, ``torchtitan@2025``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.model.training import Release, Trainer
from sartor.model.workload import COMMON_SCHEDULES
from sartor.operators import DType
from sartor.step.trainers.megatron import MEGATRON, UNFUSED


def _discovered() -> Iterator[Trainer]:
    """The records in this folder's files; one that a file imports from another counts once."""
    names = (f"{__name__}.{module.name}" for module in iter_modules(__path__))
    values = [value for module in map(import_module, names) for value in vars(module).values()]
    records = {id(value): value for value in values if isinstance(value, Trainer)}.values()
    by_name = {record.names[0]: record for record in records}
    assert len(by_name) == len(records), f"two trainers have one name: {sorted(r.names[0] for r in records)}"
    return iter(sorted(records, key=lambda record: (-record.precedence, record.names)))


TRAINERS: Mapping[str, Trainer] = {record.names[0]: record for record in _discovered()}
"""Every record of the folder, those that are built on others first: a table's software column can match several."""

OTHER = Trainer(
    name="other",
    fused_heads=1,
    schedules=COMMON_SCHEDULES,
    releases=(UNFUSED,),
    optional_sequence_parallel=False,
    usual_zero_stage=1,
    varies=MEGATRON.varies,
    source="assumed",
)
"""An unknown trainer of a published run: assumed similar to Megatron, at the average speed of trainers."""

DEFAULT = "megatron"

PLAUSIBLE_TRAINERS = (DEFAULT, "nemo", "torchtitan")
"""Trainers that a run on GPUs which names none could have: the usual one, the same with the switches of its vendor's
recipes, and the usual one that does not pad a vocabulary."""


def plausible_trainers(gpus: Sequence[Gpu]) -> tuple[str, ...]:
    """Trainers that a run on such devices which names none could have, the usual one first: Megatron-LM and its like;
    where a vendor has a usual trainer, that one; on template accelerators the lockstep runtime of their design."""
    if any(gpu.accelerator is not None for gpu in gpus):
        return ("lockstep",)
    usual = tuple(name for name, trainer in TRAINERS.items() if any(_is_of(gpu, trainer.usual_on) for gpu in gpus))
    return usual or PLAUSIBLE_TRAINERS


def _is_of(gpu: Gpu, vendors: Sequence[str]) -> bool:
    return gpu.vendor.lower() in {vendor.lower() for vendor in vendors}


def trainer_named(name: str, gpu: Gpu) -> Trainer:
    """The trainer that a name refers to on devices such as ``gpu``, set up as in the launch files that sartor writes.
    Raises ``InputError`` for an unknown name, and for a trainer that does not run on them."""
    stated, _, release = name.strip().lower().replace("_", "-").partition("@")
    trainer = next((trainer for trainer in TRAINERS.values() if stated in trainer.names), None)
    if trainer is None:
        choices = sorted(key for key, trainer in TRAINERS.items() if not trainer.of_one_source)
        nearest = ", ".join(difflib.get_close_matches(stated, choices, n=1, cutoff=0.5))
        raise InputError("framework", name, f"must be one of {', '.join(choices)}", nearest)
    if release and not _months(release):
        must = f"states no release: a year from {FIRST_YEAR}, or a container's year and month"
        raise InputError("framework", name, must, f"{stated}@{READ[0]} or {stated}@{READ[0] % 100}.06")
    check_device(trainer, gpu, "framework", name)
    return of_release(as_launched(trainer), release, gpu.generation)


def check_device(trainer: Trainer, gpu: Gpu, field: str, value: str, instead: str = "") -> None:
    """Raise ``InputError`` for a trainer, stated as a field's value, that does not run on devices such as ``gpu``;
    ``instead``: what to state, if not the usual trainer there."""
    if _is_of(gpu, trainer.not_on):
        usual = plausible_trainers([gpu])[0]
        must = f"does not run on {gpu.name} ({gpu.vendor}); {TRAINERS[usual].called} does"
        raise InputError(field, value, must, instead or usual)


FIRST_YEAR = 2019
"""Before it none of these trainers had a release: Megatron-LM, the first, is of September 2019 (arXiv 1909.08053)."""
READ = (2026, 11)
"""Year and month in which the records of trainers were read last; of later releases nothing is known."""


def release_words(name: str) -> tuple[str, ...]:
    """What is assumed of a trainer's release that is newer than its record."""
    release = name.partition("@")[2]
    if not release or not any(month > READ for month in _months(release)):
        return ()
    return (f"{name} is newer than what is known of trainers ({READ[0]}-{READ[1]}): priced as the newest known",)


def _months(release: str) -> list[tuple[int, int]]:
    """The year and month of a release, January of a year; none for words that hold no release that can be."""
    months = [(2000 + v[0], v[1]) if len(v) > 1 else (v[0], 1) for v in _versions(release)]
    return [month for month in months if month[0] >= FIRST_YEAR and 1 <= month[1] <= 12]


def as_launched(trainer: Trainer) -> Trainer:
    """The trainer with compiled kernels and fp32 gradient reduction, as set in the launch files that sartor writes;
    gradients kept wider than they are reduced cannot be set there, so their type stays."""
    if not trainer.launchable:
        return trainer
    narrow = trainer.memory.grad_bytes > trainer.grad_dtype.bytes
    return replace(trainer, fused_kernels=True, grad_dtype=trainer.grad_dtype if narrow else DType.FP32)


def as_written(trainer: Trainer, name: str) -> Trainer:
    """The trainer restricted to what launch files of the trainer ``name`` can express."""
    return replace(trainer, **record_named(name).in_files)


def trainer_of_files(name: str) -> Trainer:
    """The trainer ``name`` as its launch files start it, restricted to what they can express."""
    return as_written(as_launched(record_named(name)), name)


def record_named(name: str) -> Trainer:
    """The record of a known name or alias."""
    return next(trainer for trainer in TRAINERS.values() if name in trainer.names)


def trainer_in_table(name: str) -> Trainer | None:
    """The trainer that a published run's software belongs to: by its name, or by a word of it; None if no known name
    matches."""
    software = name.lower()
    exact = next((trainer for trainer in TRAINERS.values() if software in trainer.names), None)
    return exact or next(
        (trainer for trainer in TRAINERS.values() if any(word in software for word in trainer.words)), None
    )


FLASH_1 = Release(
    last=(2022,),
    generations=("ampere",),
    changes={"attention_factor": 2.0},
    source="FlashAttention-2 (arXiv 2307.08691, abstract: about twice as fast as the first) is of July 2023",
)
"""Fused attention of every trainer before FlashAttention-2."""


def of_release(trainer: Trainer, release: str, generation: str) -> Trainer:
    """The trainer as of a release (``26.06``, ``2021``, or text that contains one) on a generation of devices."""
    versions = _versions(release)
    for change in (FLASH_1, *trainer.releases):
        runs_so = trainer.fused_kernels or not change.compiled
        if runs_so and any(change.holds(version, generation) for version in versions):
            trainer = replace(trainer, **change.changes)
    return trainer


def _versions(release: str) -> list[tuple[int, ...]]:
    """The year, or year and month of a container, in a release's words."""
    years = re.findall(r"\b(20\d\d)", release)[:1]
    containers = re.findall(r"\b(2\d)\.(\d\d)\b", release)[:1]
    return [*((int(year),) for year in years), *((int(a), int(b)) for a, b in containers)]
