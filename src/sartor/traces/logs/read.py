"""A training log as the runs it holds; the trainer is recognized by its step lines.

``formats.toml`` has what the trainers print: patterns of numbers with their units, and facts about the plan.
"""

from __future__ import annotations

import csv
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import numpy as np

from sartor.bounded import decoded, packaged_toml, read_bytes, unpacked
from sartor.errors import InputError
from sartor.hardware.catalog import GPUS
from sartor.json_types import JsonMap
from sartor.traces.logs.run_log import RunLog
from sartor.units import GIB, BoolArray, FloatArray, IntArray

NUMBER = r"([0-9][0-9,]{0,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?)"
HUMAN = NUMBER + r"([KMGTB]?)"
"""A number with a suffix such as K or M, as nanotron prints."""
MEGABYTES = 2.0**20
TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """One number in a line: its quantity, pattern and unit in SI."""

    of: str
    """``step_s``, ``steps_per_s``, ``tokens_per_s``, ``device_tokens_per_s``, ``samples_per_s``, ``flops_per_s``,
    ``allocated_bytes``, ``reserved_bytes``, or a whole-number fact (``global_batch_size``)."""
    where: re.Pattern[str]
    unit: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogFormat:
    """How one trainer prints its steps."""

    trainer: str
    title: str
    marks: tuple[str, ...]
    """Words that every step line contains."""
    iteration: re.Pattern[str] | None
    """None: every line stands for a whole run."""
    readings: tuple[_Reading, ...]
    beside: tuple[_Reading, ...] = ()
    """Numbers on lines of their own that belong to the step before."""
    counts_samples: bool = False
    """Whether the iteration counts samples."""
    clock: re.Pattern[str] | None = None
    """Time stamp of a line, for logs in which only this tells how long steps take."""
    begins: str = ""
    """Words on a line that every launch prints once, before its first step."""
    units: tuple[str, ...] = field(default_factory=tuple)


_FILE = packaged_toml("traces/logs", "formats.toml")
UNITS = {"ms": 1e-3, "MiB": MEGABYTES, "GiB": GIB, "GB": 1e9, "tera": TERA, "percent_of_a100": 3.12 * TERA}
"""Units of ``formats.toml`` in SI; nanoGPT prints shares of an A100's peak, whatever the GPU."""


def _format(row: JsonMap) -> _LogFormat:
    """A row of ``formats.toml``."""
    texts = {name: tuple(row[name]) for name in ("marks", "units")}
    patterns = {name: re.compile(row[name]) if name in row else None for name in ("iteration", "clock")}
    readings = {name: tuple(map(_reading, row.get(name, ()))) for name in ("readings", "beside")}
    return _LogFormat(**{**row, **texts, **patterns, **readings})


def _reading(row: JsonMap) -> _Reading:
    number = HUMAN if row.get("number") == "human" else NUMBER
    where = row["before"] + r"\s{0,12}" + number + row.get("after", "")
    return _Reading(of=row["of"], where=re.compile(where), unit=UNITS.get(row.get("unit", ""), 1.0))


FORMATS = tuple(map(_format, _FILE["format"]))
MEGATRON = next(form for form in FORMATS if form.title == "Megatron-LM")

RANK = re.compile(r"^\s{0,4}(?:\[(\d{1,6})\]:|(\d{1,6}): )|^.{0,120}?\[(?:default|rank)(\d{1,6})\]:")
"""The rank that a launcher puts before each line; of times and rates only the lowest one's lines count."""
NO_NUMBER = re.compile(r"loss['\"]?\s{0,3}[:=]\s{0,12}'?nan\b|nan iterations:\s{0,8}[1-9]", re.IGNORECASE)
"""A step line whose loss is not a number."""


DUMPED = re.compile(r"\b([a-zA-Z]\w{1,60}) \.{3,60} (.{1,400})$")
"""A line of Megatron's dump of arguments: ``  hidden_size .......... 4096``, behind any prefix."""

_FACTS: Mapping[str, Sequence[str]] = _FILE["facts"]
_WORDS: Mapping[str, Mapping[str, str]] = _FILE["words"]
_AXES_OF_NAME = {"pp": "pp", "tp": "tp", "cp": "cp", "ep": "ep", "mbs": "microbatch_size", "gbs": "global_batch_size"}
_NAMED = re.compile(r"(?<![a-zA-Z0-9])(pp|tp|cp|ep|mbs|gbs|seq)(\d{1,9})(?![0-9])")
_NODES = re.compile(r"(?<![a-zA-Z0-9])(\d{1,5})n(\d{1,3})g(?![a-zA-Z0-9])")
LEAST_NAMED = 3
"""Least number of parts in the name of a configuration, such as ``pp4-cp1-ep8-mbs1``."""
_MESH = re.compile(r"device mesh with \[([^\]]{1,200})\], \[([^\]]{1,200})\]")
_PARALLELISM = re.compile(r"device mesh with parallelism: ((?:\w{1,20}=\d{1,7}(?:, )?){1,12})")


def _arguments_in(text: str) -> dict[str, str]:
    """The dump of Megatron's arguments."""
    matches = (DUMPED.search(line) for line in text.splitlines() if " ..." in line)
    return {match[1]: match[2].strip() for match in matches if match}


def _facts_in(text: str) -> dict[str, int | str]:
    """Facts about plan and job in the lines before the first step."""
    facts: dict[str, int | str] = {}
    for line in text.splitlines():
        facts |= _configuration_name(line)
    facts |= _mesh(text)
    for name, patterns in _FACTS.items():
        for pattern in patterns:
            if match := re.search(pattern, text, re.MULTILINE):
                facts[name] = int(match[1].replace(",", ""))
                break
    for name, words in _WORDS.items():
        stated_word = next((word for pattern, word in words.items() if re.search(pattern, text)), None)
        if stated_word:
            facts[name] = stated_word
    return facts


def gpu_named(text: str) -> str | None:
    """The catalogue's name of the device that a driver calls ``text``; None if it is none with a single version."""
    single = {name.replace("_", "[ _]"): name for name in GPUS.names() if "_" not in name or name.startswith("rtx")}
    names = {**_WORDS["gpu"], **{rf"(?i)\b{words}\b": name for words, name in single.items()}}
    return next((name for pattern, name in names.items() if re.search(pattern, text)), None)


def _configuration_name(line: str) -> dict[str, int | str]:
    """``8n8g-h100/pp4-cp1-ep8-mbs1-gbs1024-seq4096``."""
    parts = dict(_NAMED.findall(line))
    if len(parts) < LEAST_NAMED:
        return {}
    facts: dict[str, int | str] = {_AXES_OF_NAME.get(name, "seq_len"): int(value) for name, value in parts.items()}
    if nodes := _NODES.search(line):
        facts["num_devices"] = int(nodes[1]) * int(nodes[2])
    return facts


def _mesh(text: str) -> dict[str, int | str]:
    """torchtitan's device mesh: ``Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]``, and since 2025
    ``Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1``, whose experts' axes
    lie inside the others. The former kind leaves out degrees of 1."""
    if match := _PARALLELISM.search(text):
        mesh = {name: int(size) for name, size in re.findall(r"(\w{1,20})=(\d{1,7})", match[1])}
        return {**_degrees(mesh), "num_devices": math.prod(mesh.get(name, 1) for name in AXES)}
    match = _MESH.search(text)
    if not match:
        return {}
    names = re.findall(r"\w{1,20}", match[1])
    mesh = dict(zip(names, map(int, re.findall(r"\d{1,7}", match[2])), strict=False))
    whole = all(name in AXES for name in names)
    if not whole:
        return _degrees(mesh)
    return {"tp": 1, "pp": 1, "cp": 1, **_degrees(mesh), "num_devices": math.prod(mesh.values())}


AXES = ("dp_shard", "dp_replicate", "dp", "tp", "pp", "cp")
"""Axes of a mesh whose product is the number of devices."""


def _degrees(mesh: Mapping[str, int]) -> dict[str, int | str]:
    return {name: mesh[name] for name in ("tp", "pp", "cp", "ep") if name in mesh}


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
    text = _rows_of_events(data) if _EVENTS.match(data) else decoded(data, field, str(path), errors="replace")
    return _parse_log(_COLOURS.sub("", text) if "\x1b" in text else text, str(path), field)


def _parse_log(text: str, name: str, field: str = "LOG") -> tuple[RunLog, ...]:
    """The runs of a log's text. Raises `InputError` if it has no step line of a known trainer."""
    text = _rows_of(text)
    lines = text.splitlines()
    form = _format_of(text, lines)
    if form is None:
        raise InputError(field, name, f"holds no line of a training step that is known; {MUST}")
    runs = [_run(form, part) for part in _parts(form, lines)]
    timed_runs = [run for run in runs if any(np.isfinite(rate).any() for rate in _rates(run))]
    if not timed_runs:
        raise InputError(field, name, f"has {form.title} lines but no step time in them; must hold at least one step")
    return tuple(replace(run, index=index, num_runs=len(timed_runs)) for index, run in enumerate(timed_runs))


def _rows_of(text: str) -> str:
    """A table of comma-separated values with Weights & Biases' columns as JSON, a row a line; other text as it is."""
    head = text[:LONGEST_LINE].partition("\n")[0]
    if "_step" not in head or "_runtime" not in head or head.lstrip().startswith("{"):
        return text
    rows = csv.DictReader(text.splitlines())
    return "\n".join(", ".join(f'"{name}": {value}' for name, value in row.items() if value) for row in rows)


_EVENTS = re.compile(rb".{12}\x09.{8}\x1a.brain\.Event:\d", re.DOTALL)
"""The first record of a TensorBoard file: the time, and the version of its events."""


def _rows_of_events(data: bytes) -> str:
    """The scalars of a TensorBoard file as JSON, a row a step. Records are length, check sum, a
    protobuf ``Event`` (1 wall time, 2 step, 5 summary of values: 1 tag, 2 number, 8 tensor) and a check sum."""
    rows: dict[int, str] = {}
    at, begun = 0, 0.0
    while at + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        event = dict(_wire(data[at + 12 : at + 12 + size]))
        at += size + 16
        (time_s,) = struct.unpack("<d", event.get(1, b"").ljust(8, b"\0")[:8])
        begun = begun or time_s
        for number, value in _wire(event.get(5, b"")):
            scalar = dict(_wire(value)) if number == 1 else {}
            figure = scalar.get(2) or dict(_wire(scalar.get(8, b""))).get(5, b"")
            if len(figure) == 4:
                step = int.from_bytes(event.get(2, b""), "little")
                row = rows.get(step, f'{{"_step": {step}, "_wall_time": {time_s - begun:.3f}')
                tag = scalar.get(1, b"").decode(errors="replace")
                rows[step] = f'{row}, "{tag}": {struct.unpack("<f", figure)[0]:.6g}'
    return "\n".join(f"{row}}}" for row in rows.values())


def _wire(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a protobuf message, by number; integers as little-endian bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while at < len(message):
            value, shift, at = value | (message[at] & 127) << shift, shift + 7, at + 1
            if message[at - 1] < 128 or shift > 63:
                break
        return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        size = {1: 8, 5: 4}.get(kind, 0) if kind else varint()
        size = varint() if kind == 2 else size
        value = size.to_bytes(10, "little") if kind == 0 else message[at : at + size]
        at += size if kind else 0
        yield number, value


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


def _format_of(text: str, lines: Sequence[str]) -> _LogFormat | None:
    """The format with the most step lines; None if no line matches."""
    matching = [form for form in FORMATS if all(mark in text for mark in form.marks)]  # much faster than line by line
    counts = [(sum(all(mark in line for mark in form.marks) for line in lines), form) for form in matching]
    best, form = max(counts, key=lambda counted: counted[0], default=(0, None))
    return form if best else None


def _parts(form: _LogFormat, lines: Sequence[str]) -> Iterator[_LogPart]:
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
        if match is None and form.iteration:  # no step, though it has the words of one
            waiting.append(line)
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


def _run(form: _LogFormat, part: _LogPart) -> RunLog:
    iterations = sorted({iteration for iteration, _ in part.steps})
    row = {iteration: i for i, iteration in enumerate(iterations)}
    columns = {reading.of: np.full(len(iterations), np.nan) for reading in (*form.readings, *form.beside)}

    def put(readings: Sequence[_Reading], iteration: int, line: str) -> None:
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
    facts = _facts_in(header)
    last_batch = _of_last_batch(columns)
    batch = columns.pop("global_batch_size", None)
    if batch is not None and np.isfinite(batch).any():
        facts["global_batch_size"] = int(batch[np.isfinite(batch)][-1])
    run = _derived(
        form, np.array(iterations), columns, _clock(form, part, row), facts, _arguments_in(header), _year(part)
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


def _value(reading: _Reading, line: str) -> float | None:
    match = reading.where.search(line)
    if match is None:
        return None
    scale = _SUFFIX[match[2]] if reading.where.groups > 1 else 1.0
    value = float(match[1].replace(",", "")) * scale * reading.unit
    return value if 0 < value < LARGEST else None


def _clock(form: _LogFormat, part: _LogPart, row: dict[int, int]) -> FloatArray:
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
    if re.fullmatch(r"\d{1,9}\.\d{1,9}", text):
        return float(text)
    if elapsed := _ELAPSED.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in elapsed.groups())
        return 86400.0 * days + 3600 * hours + 60 * minutes + seconds
    try:
        return datetime.fromisoformat(text.replace(",", ".")).timestamp()
    except (ValueError, OverflowError, OSError):
        return float("nan")


_ELAPSED = re.compile(r"(?:(\d{1,4}) days?, )?(\d{1,2}):(\d\d):(\d\d)")


def _derived(
    form: _LogFormat,
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


def _trainer(form: _LogFormat, arguments: dict[str, str], year: str) -> str:
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
