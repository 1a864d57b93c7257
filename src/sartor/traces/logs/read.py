"""A training log as the runs it holds; the trainer is recognized by its step lines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from sartor.bounded import decoded, read_bytes, unpacked
from sartor.errors import InputError
from sartor.traces.logs.formats import FORMATS, MEGATRON, NO_NUMBER, RANK, LogFormat, Reading, arguments_in, facts_in
from sartor.traces.logs.run_log import RunLog
from sartor.units import BoolArray, FloatArray, IntArray

MAX_LOG_BYTES = 200_000_000
"""Largest log that is read."""
LONGEST_LINE = 4000
"""Only this many characters of a line are read."""
MOST_HEADER = 2_000_000
"""Only this many characters before a run's first step are searched for facts."""
LARGEST = 1e30
"""Larger numbers are ignored."""
MUST = f"must be a training log of {', '.join(dict.fromkeys(form.title.split(' (')[0] for form in FORMATS))}"

_COLOURS = re.compile(r"\x1b\[[0-9;]{0,12}m")
_SUFFIX = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def read_log(path: str | Path, field: str = "LOG") -> tuple[RunLog, ...]:
    """Every run of a log (text, or text in gzip), in order; a new run begins where the iteration number decreases or a
    launch prints its beginning. Raises `InputError`."""
    data = read_bytes(Path(path), field, "must be a training log", limit=MAX_LOG_BYTES)
    data = unpacked(data, field, str(path), limit=MAX_LOG_BYTES)
    text = decoded(data, field, str(path), errors="replace")
    return _parse_log(_COLOURS.sub("", text) if "\x1b" in text else text, str(path), field)


def _parse_log(text: str, name: str, field: str = "LOG") -> tuple[RunLog, ...]:
    """The runs of a log's text. Raises `InputError` if it has no step line of a known trainer."""
    lines = text.splitlines()
    form = _format_of(text, lines)
    if form is None:
        raise InputError(field, name, f"holds no line of a training step that is known; {MUST}")
    runs = [_run(form, part) for part in _parts(form, lines)]
    timed_runs = [run for run in runs if any(np.isfinite(rate).any() for rate in _rates(run))]
    if not timed_runs:
        raise InputError(field, name, f"has {form.title} lines but no step time in them; must hold at least one step")
    return tuple(replace(run, index=index, num_runs=len(timed_runs)) for index, run in enumerate(timed_runs))


def _rates(run: RunLog) -> tuple[FloatArray, ...]:
    """The arrays from which step times can be derived."""
    return run.step_s, run.tokens_per_s, run.device_tokens_per_s, run.samples_per_s


@dataclass(slots=True)
class _LogPart:
    """One run's lines: the text before its first step, and its steps."""

    header: list[str] = field(default_factory=list)
    steps: list[tuple[int, str]] = field(default_factory=list)
    others: list[tuple[int, str]] = field(default_factory=list)
    """Step lines of other ranks."""
    beside: dict[int, list[str]] = field(default_factory=dict)


def _format_of(text: str, lines: Sequence[str]) -> LogFormat | None:
    """The format with the most step lines; None if no line matches."""
    matching = [form for form in FORMATS if all(mark in text for mark in form.marks)]  # much faster than line by line
    counts = [(sum(all(mark in line for mark in form.marks) for line in lines), form) for form in matching]
    best, form = max(counts, key=lambda counted: counted[0], default=(0, None))
    return form if best else None


def _parts(form: LogFormat, lines: Sequence[str]) -> Iterator[_LogPart]:
    stepping = [all(mark in line for mark in form.marks) for line in lines]
    rank = min((_rank(line) for line, step in zip(lines, stepping, strict=True) if step), default=-1)
    part, before, begun = _LogPart(), -1, False
    waiting: list[str] = []
    for line, step in zip(lines, stepping, strict=True):
        if not step:
            waiting.append(line[:LONGEST_LINE])
            begun = begun or bool(form.begins and form.begins in line)
            continue
        line = line[:LONGEST_LINE]
        match = form.iteration.search(line) if form.iteration else None
        if match is None and form.iteration:
            continue
        iteration = int(match[1]) if match else 0
        if _rank(line) not in (rank, NO_RANK):
            part.others.append((iteration, line))
            continue
        if part.steps and (iteration < before or begun or form.iteration is None):
            yield part
            part = _LogPart(header=waiting)
        elif part.steps:
            part.beside.setdefault(before, []).extend(waiting)
        else:
            part.header += waiting
        waiting, before, begun = [], iteration, False
        part.steps.append((iteration, line))
    if part.steps:
        part.beside.setdefault(before, []).extend(waiting)
        yield part


NO_RANK = 10**6
"""Above every rank: that of a line without one."""


def _rank(line: str) -> int:
    """The rank that a launcher put before a line."""
    match = RANK.match(line)
    return NO_RANK if match is None else int(match[match.lastindex or 1])


HIGHEST = ("allocated_bytes", "reserved_bytes")
"""Quantities of which the highest of all ranks counts; of others, that of the first line."""


def _run(form: LogFormat, part: _LogPart) -> RunLog:
    iterations = sorted({iteration for iteration, _ in part.steps})
    row = {iteration: i for i, iteration in enumerate(iterations)}
    columns = {reading.of: np.full(len(iterations), np.nan) for reading in (*form.readings, *form.beside)}

    def put(readings: Sequence[Reading], iteration: int, line: str) -> None:
        for reading in readings:
            column, place = columns[reading.of], row[iteration]
            has_value = not math.isnan(column[place])
            if has_value and reading.of not in HIGHEST:
                continue
            value = _value(reading, line)
            if value is not None:
                column[place] = max(value, column[place]) if has_value else value

    for iteration, line in part.steps:
        put(form.readings, iteration, line)
    highest = [reading for reading in form.readings if reading.of in HIGHEST]
    for iteration, line in part.others:
        put(highest, iteration if iteration in row else iterations[0], line)
    for line in part.header:
        put(form.beside, iterations[0], line)
    for iteration, after in part.beside.items():
        for line in after:
            put(form.beside, iteration, line)
    header = "\n".join(part.header)[:MOST_HEADER]
    facts = facts_in(header)
    last_batch = _of_last_batch(columns)
    batch = columns.pop("global_batch_size", None)
    if batch is not None and np.isfinite(batch).any():
        facts["global_batch_size"] = int(batch[np.isfinite(batch)][-1])
    run = _derived(
        form, np.array(iterations), columns, _clock(form, part, row), facts, arguments_in(header), _year(part)
    )
    lost = {iteration for iteration, line in part.steps if NO_NUMBER.search(line)}
    return replace(run.only(last_batch), no_number=len(lost), printed=len(row))


def _of_last_batch(columns: Mapping[str, FloatArray]) -> BoolArray:
    """Steps of the last batch size, while earlier ones have others (batch ramp-up)."""
    batch = columns.get("global_batch_size", np.zeros(0))
    stated = np.isfinite(batch)
    if not stated.any():
        return np.ones(next(iter(columns.values()), batch).size, dtype=bool)
    steps: BoolArray = ~stated | (batch == batch[stated][-1])
    return steps


def _value(reading: Reading, line: str) -> float | None:
    match = reading.where.search(line)
    if match is None:
        return None
    scale = _SUFFIX[match[2]] if reading.where.groups > 1 else 1.0
    value = float(match[1].replace(",", "")) * scale * reading.unit
    return value if 0 < value < LARGEST else None


def _clock(form: LogFormat, part: _LogPart, row: dict[int, int]) -> FloatArray:
    """Time at which each step's line was printed [s]."""
    times = np.full(len(row), np.nan)
    for iteration, line in part.steps if form.clock else ():
        match = form.clock.search(line) if form.clock else None
        if match and np.isnan(times[row[iteration]]):
            times[row[iteration]] = _seconds(match[1])
    return times


def _seconds(text: str) -> float:
    if text.isdigit():
        return int(text) / 1e3
    if elapsed := _ELAPSED.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in elapsed.groups())
        return 86400.0 * days + 3600 * hours + 60 * minutes + seconds
    try:
        return datetime.fromisoformat(text.replace(",", ".")).timestamp()
    except (ValueError, OverflowError, OSError):
        return float("nan")


_ELAPSED = re.compile(r"(?:(\d{1,4}) days?, )?(\d{1,2}):(\d\d):(\d\d)")


def _derived(
    form: LogFormat,
    iteration: IntArray,
    columns: dict[str, FloatArray],
    clock: FloatArray,
    facts: dict[str, int | str],
    arguments: dict[str, str],
    year: str,
) -> RunLog:
    """The run, with step times derived from samples, tokens or, as the last resort, the clock."""
    empty = np.full(iteration.size, np.nan)
    facts = {**_from_arguments(arguments), **facts}
    batch = facts.get("global_batch_size")
    if form.counts_samples and isinstance(batch, int) and batch > 0:
        iteration = iteration // batch
    run = RunLog(
        trainer=_trainer(form, arguments, year),
        title="Megatron-DeepSpeed" if arguments.get("deepspeed") == "True" else form.title,
        iteration=iteration,
        step_s=columns.get("step_s", 1 / columns.get("steps_per_s", empty)),
        tokens_per_s=columns.get("tokens_per_s", empty),
        device_tokens_per_s=columns.get("device_tokens_per_s", empty),
        samples_per_s=columns.get("samples_per_s", empty),
        flops_per_s=columns.get("flops_per_s", empty),
        allocated_bytes=columns.get("allocated_bytes", empty),
        reserved_bytes=columns.get("reserved_bytes", empty),
        facts=facts,
        arguments=arguments,
        units=form.units,
        prints_tokens=bool({"tokens_per_s", "device_tokens_per_s"} & set(columns)) or "tokens_per_step" in facts,
    ).knowing()
    return replace(run, step_s=_between(clock, iteration)).knowing() if np.isnan(run.step_s).all() else run


def _between(clock: FloatArray, iteration: IntArray) -> FloatArray:
    """Seconds per step from the times at which lines were printed."""
    with np.errstate(divide="ignore", invalid="ignore"):
        passed = np.diff(clock, prepend=np.nan) / np.diff(iteration, prepend=iteration[0])
    seconds: FloatArray = np.where((passed > 0) & np.isfinite(passed), passed, np.nan)
    return seconds


ARGUMENTS = {
    "num_devices": "world_size",
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "microbatch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    "seq_len": "seq_length",
}
"""Fact -> Megatron's argument."""


def _from_arguments(arguments: dict[str, str]) -> dict[str, int | str]:
    words = {name: arguments.get(argument, "") for name, argument in ARGUMENTS.items()}
    facts: dict[str, int | str] = {
        name: int(value) for name, value in words.items() if re.fullmatch(r"\d{1,12}", value)
    }
    return facts


def _trainer(form: LogFormat, arguments: dict[str, str], year: str) -> str:
    """The trainer's name for ``--framework``, with the year as release. Megatron's forks, and its releases before 2022,
    are recognized by their arguments."""
    if form is MEGATRON and ("checkpoint_activations" in arguments or "DDP_impl" in arguments):
        year = year or "2021"
    fork = form is MEGATRON and arguments.get("deepspeed") == "True"
    name = "megatron-deepspeed" if fork else form.trainer
    return f"{name}@{year}" if year else name


_YEAR = re.compile(r"(?<!\d)(20[12]\d)-\d\d-\d\d[ T]")


def _year(part: _LogPart) -> str:
    """The year in which the first step was printed."""
    match = _YEAR.search(part.steps[0][1])
    return match[1] if match else ""
