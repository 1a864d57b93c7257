"""What launch files lose of a job, read back and priced again, and what switches without a price leave open.

A switch that was asked for and changes the price is refused if the files cannot say it; any other difference is a note
with the price that the files have.

A switch takes away, or adds, at most a share of the parts of memory that it may change (``bytes_of`` and ``share`` in
``fields.toml``).
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any

from sartor.errors import InputError
from sartor.launch.fields import Row, rows, text_of
from sartor.launch.files import read_launch, save_files
from sartor.launch.plan import LaunchFiles, LaunchKind, canonical
from sartor.model.training import Trainer, TrainingJob, TrainingPlan
from sartor.plans.fixed import SWITCHED
from sartor.run.run import Turn
from sartor.step.stage_table import StageMemory
from sartor.step.trainers import TRAINERS, as_launched, record_named
from sartor.units import format_bytes, format_seconds

Price = Callable[[TrainingJob, TrainingPlan], tuple[float, float]]
"""Seconds of a step, and bytes of the fullest device."""
SAME = 1e-9
"""Relative difference below which two prices are equal."""
SWITCHES = (
    "tp_overlap", "dp_overlap", "p2p_overlap", "ep_overlap", "fused_kernels", "fused_loss", "grad_fusion",
    "cuda_graphs", "grad_dtype", "splits_experts", "dispatch_once",
)  # fmt: skip
"""Switches of a trainer; its other fields are habits, which no file sets."""
NOT_SAID = ("shape", "trainer", "routing_skew", "document_len", "trains_weights", "frozen_bits", "global_batch_size")
"""Fields of a job that are compared apart, belong to the data, or are refused before."""
WORDS = {"attention_kernel": "attention", "dispatch_once": "deepep", "splits_experts": "split_experts"}
"""Names of options, where they differ from the field's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lost:
    """A field that the files have at another value."""

    field: str
    asked: Any
    found: Any
    of_trainer: bool = False

    @property
    def name(self) -> str:
        return WORDS.get(self.field, self.field)

    @property
    def word(self) -> str:
        return f"{self.name}={_word(self.found)}"

    def put(self, job: TrainingJob) -> TrainingJob:
        """The job with the files' value."""
        if self.of_trainer:
            return replace(job, trainer=replace(job.trainer, **{self.field: self.found}))
        return replace(job, **{self.field: self.found})


def checked(
    written: LaunchFiles, job: TrainingJob, plan: TrainingPlan, price: Price, limit_bytes: float = math.inf
) -> LaunchFiles:
    """The files, with notes on every difference between what they say and the job and plan that were asked for. Raises
    `InputError` for a switch that was asked for, changes the price, and is not in them.

    ``limit_bytes`` is what a device may hold.
    """
    again, plan_of_files = _read_back(written, job)
    lost, wanted_price = tuple(_lost(job, again)), price(job, plan)
    same = canonical(plan, int(job.shape.num_layers)) == plan_of_files
    price_of_files = price(again, plan_of_files)
    notes = list[str]()
    for loss in lost:
        matters = _differ(price(loss.put(job), plan), wanted_price)
        if matters and _was_asked(loss, job):
            raise _refusal(written.kind, loss)
        if matters or _was_asked(loss, job):
            notes.append(
                f"{loss.word} in the files, not {_word(loss.asked)}{'' if matters else ': no change in price'}"
            )
    if _differ(price_of_files, wanted_price) or not same:
        notes.append(_priced(written.kind, job, wanted_price, price_of_files, limit_bytes))
    if job.routing_skew != 1:
        notes.append(f"routing_skew={job.routing_skew:g} is of the data: plan --launch prices even routing")
    return replace(written, notes=(*notes, *written.notes))


def _read_back(written: LaunchFiles, job: TrainingJob) -> tuple[TrainingJob, TrainingPlan]:
    """The job and plan in written files; data's own properties (routing) and sizes that no file has are the job's."""
    with tempfile.TemporaryDirectory() as folder:
        save_files(written, folder)
        reading = read_launch(folder, shape=job.shape)
    again = reading.job(reading.shape or job.shape, reading.parts.seq_len or job.seq_len)
    unsaid = {name: getattr(job, name) for name in NOT_SAID[2:]}
    return replace(again, **unsaid), reading.plan


def _lost(job: TrainingJob, again: TrainingJob) -> Iterator[_Lost]:
    for name in (f.name for f in fields(job) if f.name not in NOT_SAID):
        if (before := getattr(job, name)) != (after := getattr(again, name)):
            yield _Lost(field=name, asked=before, found=after)
    for name in SWITCHES:
        if (before := getattr(job.trainer, name)) != (after := getattr(again.trainer, name)):
            yield _Lost(field=name, asked=before, found=after, of_trainer=True)


def _was_asked(lost: _Lost, job: TrainingJob) -> bool:
    """Whether a switch differs from what the job's trainer does by itself."""
    if not lost.of_trainer:
        usual = {f.name: f.default for f in fields(TrainingJob)} | {
            "context_parallel": job.trainer.usual_context_parallel,
            "recompute_modules": lost.asked,
        }
        return bool(lost.asked != usual[lost.field])
    records = [record for record in TRAINERS.values() if record.name == job.trainer.name]
    return all(_differs(lost, record) and _differs(lost, as_launched(record)) for record in records) and bool(records)


def _differs(lost: _Lost, trainer: Trainer) -> bool:
    releases = [release.changes for release in trainer.releases]
    usual = [getattr(trainer, lost.field), *(c[lost.field] for c in releases if lost.field in c)]
    return lost.asked not in usual


def _refusal(kind: LaunchKind, lost: _Lost) -> InputError:
    must = f"{kind.title}'s files cannot say it: the run would have {lost.word}"
    others = "" if kind is LaunchKind.MEGATRON else ", or --write megatron"
    return InputError(lost.name, _word(lost.asked), must, f"{lost.word}{others}")


def _priced(
    kind: LaunchKind,
    job: TrainingJob,
    price: tuple[float, float],
    price_of_files: tuple[float, float],
    limit_bytes: float,
) -> str:
    change = f"{100 * (price_of_files[0] / price[0] - 1):+.2g}%"
    full = ", more than it may hold" if price_of_files[1] > limit_bytes else ""
    times = f"{format_seconds(price_of_files[0])} ({change}) and {format_bytes(price_of_files[1])} per device{full}"
    whose = (
        "the plan" if job.trainer.name == record_named(kind.value).name else f"the plan, priced for {job.trainer.name},"
    )
    return f"{kind.title}'s files take {times}; {whose} takes {format_seconds(price[0])} and {format_bytes(price[1])}"


def _differ(price: tuple[float, float], changed: tuple[float, float]) -> bool:
    return any(abs(a - b) > SAME * max(abs(a), abs(b)) for a, b in zip(price, changed, strict=True))


def _word(value: object) -> str:
    if isinstance(value, frozenset):
        return "+".join(sorted(str(member.value) for member in value)) or "none"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def switches_in_files(kind: LaunchKind) -> tuple[str, ...]:
    """Switches that the files of a trainer say, if only by their defaults; the program that they start decides on the
    others."""
    sections = (kind.value, *_BESIDE.get(kind, ()))
    of_files = {row.field for section in sections for row in rows(section)}
    return tuple(name for name, switch in SWITCHED.items() if switch.field in of_files)


_BESIDE = {
    LaunchKind.MEGATRON_BRIDGE: ("megatron",),
    LaunchKind.DEEPSPEED: ("huggingface",),
    LaunchKind.ACCELERATE: ("huggingface",),
}
"""Further sections of the table that a trainer's files may say."""
_OFF = ("false", "none", "0", "{}")
"""Values that leave a switch off."""


def depends_on(unpriced: Sequence[str], stages: Sequence[StageMemory], limit_bytes: float) -> tuple[Turn, ...]:
    """Which of a launch's ``unpriced`` switches could turn whether it fits into ``limit_bytes`` per device: those that
    could alone, or all together if none could; and every variable (``$NAME``) that may hold any arguments."""
    change_bytes = max(stage.total_bytes() for stage in stages) - limit_bytes
    sign = 1 if change_bytes <= 0 else -1

    def turned_by(*switches: Row) -> bool:
        sizes = [stage.total_bytes() + sign * _most_bytes(stage, switches, sign) for stage in stages]
        return (max(sizes) > limit_bytes) == (sign > 0)

    switches = [(value, row) for value, row in _switches(unpriced) if row.sign in (0, sign)]
    alone = [(value, row) for value, row in switches if turned_by(row)]
    together = [] if alone or not turned_by(*(row for _, row in switches)) else switches
    others = {row.argument: [r.argument for _, r in together if r is not row] for _, row in together}
    turns = (_turn(v, row, stages, change_bytes, others.get(row.argument, [])) for v, row in alone or together)
    word = "fits if they save" if change_bytes > 0 else "does not fit if they add more than"
    figures = {"change_bytes": abs(change_bytes)}
    variables = (
        Turn(field=name, value="", verdict=f"{word} {format_bytes(abs(change_bytes))}", figures=figures)
        for name in unpriced
        if name.startswith("$")
    )
    return (*variables, *turns)


def _switches(unpriced: Iterable[str]) -> list[tuple[str, Row]]:
    """The values and rows of switches that are on and may change memory."""
    table = {row.argument: row for kind in LaunchKind for row in rows(kind, "unpriced")}
    split = [re.split("[ =]", words, maxsplit=1) for words in unpriced]
    switches = [(value[0] if value else "on", table[name]) for name, *value in split if name in table]
    return [(v, row) for v, row in switches if v.lower().removesuffix(".0") not in (*_OFF, text_of(row.default or ""))]


def _most_bytes(stage: StageMemory, switches: Sequence[Row], sign: int) -> float:
    """The most that switches together may add to a stage (``sign`` 1) or take away; no part is taken away twice."""
    names = {name for row in switches for name in row.bytes_of}
    shares = {name: sum(row.share for row in switches if name in row.bytes_of) for name in names}
    return sum(stage.part_bytes(name) * (share if sign > 0 else min(share, 1.0)) for name, share in shares.items())


def _turn(value: str, row: Row, stages: Sequence[StageMemory], change_bytes: float, others: Sequence[str]) -> Turn:
    priced = f"{' and '.join(row.bytes_of)}: {format_bytes(max(s.part_bytes(*row.bytes_of) for s in stages))} as priced"
    beside = f", together with {' and '.join(others)}" if others else ""
    word = "fits if it saves" if change_bytes > 0 else "does not fit if it adds more than"
    verdict = f"{word} {format_bytes(abs(change_bytes))} ({priced}){beside}"
    return Turn(field=row.argument, value=value, verdict=verdict, figures={"change_bytes": abs(change_bytes)})
