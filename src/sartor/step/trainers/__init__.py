"""Trainers, one record each, and which one a user's name or a published run refers to.

A release is given after an @: ``nemo@26.06``, ``megatron@2021``, ``torchtitan@2025``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.model.trainer import Trainer
from sartor.operators import DType
from sartor.step.trainers.deepspeed import DEEPSPEED
from sartor.step.trainers.fsdp import FSDP
from sartor.step.trainers.lockstep import LOCKSTEP
from sartor.step.trainers.maxtext import MAXTEXT
from sartor.step.trainers.megatron import MEGATRON
from sartor.step.trainers.megatron_deepspeed import MEGATRON_DEEPSPEED
from sartor.step.trainers.nemo import MEGATRON_BRIDGE, NEMO
from sartor.step.trainers.other import OTHER
from sartor.step.trainers.published import HAI_LLM, INTERNEVO, LLAMA_3, LLM_FOUNDRY, MEGASCALE
from sartor.step.trainers.pytorch import PYTORCH
from sartor.step.trainers.torchtitan import TORCHTITAN

__all__ = [
    "DEEPSPEED",
    "FSDP",
    "LOCKSTEP",
    "MAXTEXT",
    "MEGATRON",
    "MEGATRON_DEEPSPEED",
    "OTHER",
    "PLAUSIBLE_TRAINERS",
    "TORCHTITAN",
    "TRAINERS",
    "as_launched",
    "as_written",
    "of_release",
    "trainer_in_table",
    "trainer_named",
    "trainer_of_files",
]

TRAINERS: Mapping[str, Trainer] = {
    "maxtext": MAXTEXT,
    "torchtitan": TORCHTITAN,
    "llm-foundry": LLM_FOUNDRY,
    "internevo": INTERNEVO,
    "megatron-deepspeed": MEGATRON_DEEPSPEED,
    "deepspeed": DEEPSPEED,
    "megascale": MEGASCALE,
    "megatron-bridge": MEGATRON_BRIDGE,
    "nemo": NEMO,
    "megatron": MEGATRON,
    "fsdp": FSDP,
    "pytorch": PYTORCH,
    "llama-3": LLAMA_3,
    "hai-llm": HAI_LLM,
    "lockstep": LOCKSTEP,
}
"""Most specific names first, since the software column of a table can match several."""

OF_ONE_SOURCE = ("hai-llm", "internevo", "llama-3", "llm-foundry", "megascale")
"""Trainers known from one published source: rows of measurements name them, lists of choices leave them out."""

DEFAULT = "megatron"


PLAUSIBLE_TRAINERS = (DEFAULT, "torchtitan")
"""Trainers that a run which names none could have: the usual one, and the usual one that does not pad a vocabulary."""


def default_trainer(gpus: Sequence[Gpu]) -> str:
    """Megatron-LM on GPUs; on template accelerators the lockstep runtime that their design assumes."""
    return "lockstep" if any(gpu.accelerator is not None for gpu in gpus) else DEFAULT


def trainer_named(name: str, gpu: Gpu) -> Trainer:
    """The trainer that a name refers to on devices such as ``gpu``, set up as in the launch files that sartor writes.
    Raises ``InputError`` for an unknown name."""
    stated, _, release = name.strip().lower().replace("_", "-").partition("@")
    word = next((key for key, trainer in TRAINERS.items() if stated in trainer.aliases), stated)
    if word not in TRAINERS:
        choices = sorted(set(TRAINERS) - {*OF_ONE_SOURCE})
        nearest = ", ".join(difflib.get_close_matches(word, TRAINERS, n=1, cutoff=0.3))
        raise InputError("framework", name, f"must be one of {', '.join(choices)}", nearest)
    return of_release(as_launched(TRAINERS[word]), release, gpu.generation)


def as_launched(trainer: Trainer) -> Trainer:
    """The trainer with compiled kernels and fp32 gradient reduction, as set in the launch files that sartor writes;
    gradients kept wider than they are reduced cannot be set there, so their type stays."""
    if not trainer.launchable:
        return trainer
    narrow = trainer.memory.grad_bytes > trainer.grad_dtype.bytes
    return replace(trainer, fused_kernels=True, grad_dtype=trainer.grad_dtype if narrow else DType.FP32)


def as_written(trainer: Trainer, name: str) -> Trainer:
    """The trainer restricted to what launch files of the trainer ``name`` can express."""
    files = _of_name(name)
    return replace(trainer, **files.in_files)


def trainer_of_files(name: str) -> Trainer:
    """The trainer ``name`` as its launch files start it, restricted to what they can express."""
    return as_written(as_launched(_of_name(name)), name)


def _of_name(name: str) -> Trainer:
    return next(trainer for key, trainer in TRAINERS.items() if name in (key, *trainer.aliases))


def trainer_in_table(name: str) -> Trainer | None:
    """The trainer that a published run's software belongs to; None if no known name matches."""
    software = name.lower()
    return next((trainer for trainer in TRAINERS.values() if any(word in software for word in trainer.words)), None)


def of_release(trainer: Trainer, release: str, generation: str) -> Trainer:
    """The trainer as of a release (``26.06``, ``2021``, or text that contains one) on a generation of devices."""
    years = re.findall(r"\b(20\d\d)", release)[:1]
    containers = re.findall(r"\b(2\d)\.(\d\d)\b", release)[:1]
    versions = [*((int(year),) for year in years), *((int(a), int(b)) for a, b in containers)]
    for change in trainer.releases:
        runs_so = trainer.fused_kernels or not change.compiled
        if runs_so and any(change.holds(version, generation) for version in versions):
            trainer = replace(trainer, **change.changes)
    return trainer
