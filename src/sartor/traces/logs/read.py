"""A training log as the runs it holds: every number is read by the words beside it, whoever prints it.

``formats.toml`` has these words, the names of trainers by their step lines, and patterns of facts about the plan.
"""

from __future__ import annotations

import csv
import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import reduce
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from sartor.bounded import decoded, read_bytes, unpacked
from sartor.errors import InputError
from sartor.hardware.catalog import GPUS
from sartor.json_types import JsonMap
from sartor.traces.logs.fields import FILE, SUFFIX, numbers_in
from sartor.traces.logs.run_log import SLOWER, UNKNOWN, RunLog, filled
from sartor.units import GIB, FloatArray, IntArray, format_seconds, format_share


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogFormat:
    """What is known of one trainer's step lines: a row of ``formats.toml``."""

    trainer: str
    title: str
    marks: tuple[str, ...]
    """Words that every step line contains."""
    iteration: re.Pattern[str] | None = None
    """The step's number, where the trainer says it in no usual words."""
    own: tuple[str, ...] = ()
    """Words of a step line, beside such a number."""
    counts_samples: bool = False
    """Whether the iteration counts samples."""
    clocked: bool = True
    """Whether the times of its lines tell how long steps take, where nothing else does."""
    means: Mapping[str, str] = field(default_factory=lambda: {"memory": "allocated_bytes"})
    """What numbers are that are said of nothing."""
    gb: float = GIB
    keys: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    """Words for quantities of its own."""
    begins: str = ""
    """Words on a line that every launch prints once, before its first step."""
    times: str = ""
    """As in ``RunLog``."""
    units: tuple[str, ...] = ()


def _format(row: JsonMap) -> _LogFormat:
    """A row of ``formats.toml``."""
    texts = {name: tuple(row.get(name, ())) for name in ("marks", "units")}
    keys = {of: re.compile(pattern) for of, pattern in row.get("keys", {}).items()}
    iteration = re.compile(row["iteration"]) if "iteration" in row else None
    own = texts["marks"] if iteration else ()
    return _LogFormat(**{**row, **texts, "keys": keys, "iteration": iteration, "own": own})


_FILE = FILE
FORMATS = tuple(map(_format, _FILE["format"]))
MEGATRON, BAR = FORMATS[0], FORMATS[-1]
BY_WORDS = _LogFormat(trainer="pytorch", title=UNKNOWN, marks=())
STEPS = tuple(map(re.compile, _FILE["steps"]["patterns"]))
_ANY_STEP = re.compile("|".join([*_FILE["steps"]["patterns"], _FILE["format"][-1]["iteration"]]))

_LINE = {name: re.compile(pattern) for name, pattern in _FILE["lines"].items()}
_CLOCKS = tuple(map(re.compile, _FILE["clocks"]["patterns"]))
_ENDS = {name: re.compile(pattern) for name, pattern in _FILE["ends"].items()}
_CAUSES = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _FILE["causes"].items()))
_FACTS: Mapping[str, Sequence[str]] = _FILE["facts"]
_WORDS: Mapping[str, Mapping[str, str]] = _FILE["words"]
LEAST_NAMED = 3
"""Least number of parts in the name of a configuration, such as ``pp4-cp1-ep8-mbs1``."""


def _arguments_in(text: str) -> dict[str, str]:
    """The dump of Megatron's arguments."""
    matches = (_LINE["dumped"].search(line) for line in text.splitlines() if " ..." in line)
    return {match[1]: match[2].strip() for match in matches if match}


def _facts_in(text: str) -> dict[str, int | str]:
    """Facts about plan and job in the lines before the first step."""
    facts: dict[str, int | str] = {}
    for found in (*map(_configuration_name, text.splitlines()), _mesh(text)):
        facts |= found
    for name, patterns in {**_FACTS, **_FILE["texts"]}.items():
        matches = (re.search(pattern, text, re.MULTILINE) for pattern in patterns)
        if match := next(filter(None, matches), None):
            facts[name] = int(match[1].replace(",", "")) if name in _FACTS else match[1]
    local = int(facts.get("microbatch_size", 0)) * int(facts.pop("gradient_accumulation", 0))
    # The trainer's own product has no other factor than the processes; PaddleNLP's leaves out tensor parallelism.
    if local and "num_devices" not in facts and "(per device)" not in text:
        facts["num_devices"] = int(facts.get("global_batch_size", 0)) // local
    for name, words in _WORDS.items():
        if word := next((word for pattern, word in words.items() if re.search(pattern, text)), ""):
            facts[name] = word
    return facts


def _config_in(text: str) -> JsonMap:
    """The model's configuration that transformers logs; empty without one."""
    match = _LINE["config"].search(text)
    with suppress(ValueError):
        return dict(json.JSONDecoder().raw_decode(text, match.end())[0]) if match else {}
    return {}


def gpu_named(text: str) -> str | None:
    """The catalogue's name of the device that a driver calls ``text``; None if it is none with a single version."""
    single = {name.replace("_", "[ _]"): name for name in GPUS.names() if "_" not in name or name.startswith("rtx")}
    names = {**_WORDS["gpu"], **{rf"(?i)\b{words}\b": name for words, name in single.items()}}
    return next((name for pattern, name in names.items() if re.search(pattern, text)), None)


def _configuration_name(line: str) -> dict[str, int | str]:
    """``8n8g-h100/pp4-cp1-ep8-mbs1-gbs1024-seq4096``."""
    parts = dict(_LINE["named"].findall(line))
    if len(parts) < LEAST_NAMED:
        return {}
    facts: dict[str, int | str] = {_FILE["short"].get(name, name): int(value) for name, value in parts.items()}
    if nodes := _LINE["nodes"].search(line):
        facts["num_devices"] = int(nodes[1]) * int(nodes[2])
    return facts


def _mesh(text: str) -> dict[str, int | str]:
    """torchtitan's device mesh: ``Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]``, and since 2025
    ``Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1``, whose experts' axes
    lie inside the others. The former kind leaves out degrees of 1."""
    if match := _LINE["parallelism"].search(text):
        mesh = {name: int(size) for name, size in re.findall(r"(\w{1,20})=(\d{1,7})", match[1])}
        return {**_degrees(mesh), "num_devices": math.prod(mesh.get(name, 1) for name in AXES)}
    match = _LINE["mesh"].search(text)
    if not match:
        return {}
    names = re.findall(r"\w{1,20}", match[1])
    mesh = dict(zip(names, map(int, re.findall(r"\d{1,7}", match[2])), strict=False))
    if not all(name in AXES for name in names):
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
MUST = (
    f"must be a training log of {', '.join(dict.fromkeys(form.title.split(' (')[0] for form in FORMATS))}, or another "
    "with a step's number, its loss and its time or tokens/s"
)

_COLOURS = re.compile(r"\x1b\[[0-9;]{0,12}m")


def read_log(path: str | Path, field: str = "LOG") -> tuple[RunLog, ...]:
    """Every run of a log (text, or text in gzip), in order; a new run begins where the iteration number decreases or a
    launch prints its beginning. Raises `InputError`."""
    data = read_bytes(Path(path), field, "must be a training log", limit=MAX_LOG_BYTES)
    data = unpacked(data, field, str(path), limit=MAX_LOG_BYTES)
    text = _rows_of_events(data) if _EVENTS.match(data) else decoded(data, field, str(path), errors="replace")
    return _parse_log(_COLOURS.sub("", text) if "\x1b" in text else text, str(path), field)


def _parse_log(text: str, name: str, field: str = "LOG") -> tuple[RunLog, ...]:
    """The runs of a log's text. Raises `InputError` if it has no step line of a known trainer."""
    lines = _rows_of_blocks(_rows_of(text)).splitlines()
    form, marked = _form_of(lines, MOST_TRIED)
    if form is None and len(lines) > MOST_TRIED:
        form, marked = _form_of(lines, len(lines))
    if form is None:
        if marked:
            must = f"has {marked} lines but no step time in them; must hold at least one step"
            raise InputError(field, name, must)
        ends = "".join(f" {event.replace('after step 0', 'before its first step')}" for event in _ended(lines, 0))
        raise InputError(field, name, f"holds no line of a training step that is known; {MUST}{ends and '.' + ends}")
    parts = list(_parts(form, lines if form is BAR else map(_without_bar, lines)))
    heads = [*(part.header for part in parts), []][1:]
    runs = list[RunLog]()
    for part, head in zip(parts, heads, strict=True):
        run, last = _run(form, part), part.steps[-1][0]
        runs.append(replace(run, events=(*run.events, *_ended([*part.beside.get(last, ()), *head], last))))
    rolls_out = any(map(_LINE["rolls_out"].search, lines[-MOST_TRIED:]))
    runs = [replace(run, rolls_out=rolls_out) for run in runs]
    timed_runs = [run for run in runs if any(np.isfinite(rate).any() for rate in _rates(run))]
    return tuple(
        _after(run, timed_runs[index - 1]) if index else replace(run, num_runs=len(timed_runs))
        for index, run in enumerate(replace(run, index=i, num_runs=len(timed_runs)) for i, run in enumerate(timed_runs))
    )


def _after(run: RunLog, before: RunLog) -> RunLog:
    """A run with what the log says before an earlier one, if it resumes that one from a checkpoint."""
    first, last = int(run.iteration[0]), int(before.iteration[-1])
    if not int(before.iteration[0]) < first <= last:
        return run
    run = replace(run.knowing(**{**before.facts, **run.facts}), config=run.config or before.config)
    stride = int(run.iteration[1]) - first if run.iteration.size > 1 and run.times == "mean" else 1
    loaded = first - stride if run.loaded is None else run.loaded
    words = (
        f"The run resumes after step {loaded:,} one that got to {last:,}: {last - loaded:,} steps are computed twice"
    )
    step_s, earlier_s = run.measured.step_s, before.measured.step_s
    lost_s = float(run.clock_s[0] - before.clock_s[-1]) - stride * step_s
    if lost_s > step_s:
        words += f", and {lost_s / 60:,.0f} min pass between the two"
    if abs(step_s / earlier_s - 1) > SLOWER:
        change = f"{format_share(abs(step_s / earlier_s - 1))} {'slower' if step_s > earlier_s else 'faster'}"
        words += f"; its step is {change} ({format_seconds(step_s)}, {format_seconds(earlier_s)} before)"
    ends = (text.replace("The run", "The run before", 1).partition(" To do:")[0] for text in before.events[:1])
    return replace(run, events=(*run.events, *ends, f"{words}."))


def _ended(after: Sequence[str], step: int) -> tuple[str, ...]:
    """A sentence on what stopped the run, by the lines after its last step; empty if nothing did."""
    text = "\n".join(after)[-MOST_HEADER:]
    matches = {name: match for name, pattern in _ENDS.items() if (match := pattern.search(text))}
    weak = {"error": "Traceback" in text, "exit_code": step}
    name = next((name for name in matches if weak.get(name, True)), "")
    if name == "memory":
        return (_out_of_memory(text, step),)
    last_error = [match[1].strip() for match in _ENDS["error"].finditer(text)][-1:] if name == "error" else []
    error = last_error[0] if last_error else matches[name][1] if name == "exit_code" else ""
    return (f"The run {_FILE['end_words'][name].format(step=f'{step:,}', error=error)}",) if name else ()


def _out_of_memory(text: str, step: int) -> str:
    """What ran out, by PyTorch's own words, and what would help."""
    asked, total, free, unused = (
        float(match[1]) if (match := _LINE[name].search(text)) else math.nan
        for name in ("asked", "total", "free", "unused")
    )
    sizes = f"asked {asked:g} GiB" if asked > 0 else ""
    sizes += f", {free:g} of {total:g} GiB free" if free >= 0 and total > 0 and sizes else ""
    fewer = "a smaller microbatch, more recomputation, a higher ZeRO stage or more tensor parallelism"
    todo = f"{fewer}."
    if free + unused >= asked:
        todo = f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, as {unused:g} GiB more is reserved but unused and "
        todo += f"both together would be enough; else {fewer}."
    return f"The run ran out of memory after step {step:,}{f' ({sizes})' if sizes else ''}. To do: {todo}"


def _rows_of(text: str) -> str:
    """A table of comma-separated values with Weights & Biases' columns as JSON, a row a line; other text as it is."""
    head = text[:LONGEST_LINE].partition("\n")[0]
    if head.startswith('"Step",'):
        return _rows_of_panel(text)
    if "_step" not in head or "_runtime" not in head or head.lstrip().startswith("{"):
        return text
    rows = csv.DictReader(text.splitlines())
    return "\n".join(", ".join(f'"{name}": {value}' for name, value in row.items() if value) for row in rows)


def _rows_of_panel(text: str) -> str:
    """The table of a Weights & Biases panel as JSON, a row a line, run after run: its columns are ``run - key``, with
    ``__MIN`` and ``__MAX`` beside each."""
    rows = [{name: value for name, value in row.items() if name and value} for row in csv.DictReader(text.splitlines())]
    runs = dict.fromkeys(name.rpartition(" - ")[0] for row in rows[:1] for name in row if " - " in name)
    return "\n".join(
        f'"_step": {row["Step"]}, "_panel": 1, ' + ", ".join(f'"{key}": {value}' for key, value in values.items())
        for run in runs
        for row in rows
        if (values := {name[len(run) + 3 :]: value for name, value in row.items() if name.startswith(f"{run} - ")})
    )


def _rows_of_blocks(text: str) -> str:
    """A submission to MLPerf with the mean step of each block of training, where it logs no step of its own."""
    text = _LINE["mlperf_key"].sub(r'"\1": ', text)
    batch = _LINE["mlperf_batch"].search(text) if ":::MLLOG" in text and '"train_step_tim' not in text else None
    if batch is None or re.search('"(?:tracked_stats|throughput)".{0,400}?"samples_count"', text):
        return text
    lines, begun, before = [], math.nan, 0
    for line in text.splitlines():
        lines.append(line)
        if not (match := _LINE["block"].search(line)):
            continue
        now, done = int(match[1]) / 1e3, int(match[3])
        if match[2] == "stop" and done > before:
            step_s = (now - begun) / (done - before) * int(batch[1])
            metadata = f'{{"train_step_time": {step_s:.6f}, "metadata": {{"samples_count": {done}}}}}'
            lines += [f':::MLLOG {{"time_ms": {match[1]}, {metadata[1:]}'] * (step_s > 0)
        begun, before = now, max(done, before)
    return "\n".join(lines)


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
    return run.step_s, run.tokens_per_s, run.device_tokens_per_s, run.open_tokens_per_s, run.samples_per_s


@dataclass(slots=True)
class _LogPart:
    """One run's lines: the text before its first step, and its steps."""

    header: list[str] = field(default_factory=list)
    steps: list[tuple[int, str]] = field(default_factory=list)
    others: list[tuple[int, str]] = field(default_factory=list)
    """Step lines of other ranks."""
    beside: dict[int, list[str]] = field(default_factory=dict)


def _form_of(lines: Sequence[str], length: int) -> tuple[_LogFormat | None, str]:
    """The form that gives most steps a time or rate, None if none does; and the trainer whose words the lines have."""
    text = "\n".join(lines)
    forms = [form for form in FORMATS if all(mark in text for mark in form.marks)]  # much faster than line by line
    marked = [(found, form) for form in forms if (found := sum(_is_of(form, line) for line in lines))]
    forms = [form for _, form in marked]
    first = next((i for i, line in enumerate(lines) if _ANY_STEP.search(line)), 0)
    tried = lines[first : first + length]
    plain = list(map(_without_bar, tried))
    best, most, silent = None, 0.0, False
    usual = [form for form in forms if not form.iteration and form.times != "whole"]
    own = [form for form in forms if form not in usual and form is not BAR]
    named = (replace(form, iteration=words, own=form.marks) for form in usual for words in STEPS)
    for form in (*own, *named, *(replace(BY_WORDS, iteration=words) for words in STEPS)):
        parts = [] if silent and form.title == UNKNOWN else list(_parts(form, plain))
        count = _timed(form, parts) / (1 if form.iteration and form.iteration.groups else MOST_BARS)
        silent = silent or bool(parts and not count and not form.clocked)
        if count > most * (MOST_OTHER if best and form.title == UNKNOWN != best.title else 1):
            best, most = form, count
    bars = _timed(BAR, list(_parts(BAR, tried))) if BAR in forms else 0
    if bars and bars >= MOST_BARS * most:
        best = BAR
    return best, max(marked, key=lambda pair: pair[0])[1].title if marked else ""


def _is_of(form: _LogFormat, line: str) -> bool:
    step = form.iteration or (re.compile("") if form.times == "whole" else _ANY_STEP)
    return all(mark in line for mark in form.marks) and bool(step.search(line))


MOST_OTHER = 5
"""Times as many steps must lines without a trainer's words tell to count instead of those with them."""


def _timed(form: _LogFormat, parts: Sequence[_LogPart]) -> float:
    """How many steps have a time; those that have a rate alone count for less. 0 for too few, or steps of an unknown
    trainer without a loss: they may be of something else."""
    count = 0.0
    for part in parts:
        texts = ("\n".join([line, *part.beside.get(step, ())]).lower() for step, line in part.steps)
        if form.title == UNKNOWN and sum("loss" in text for text in texts) < max(LEAST_BY_WORDS, len(part.steps) / 2):
            continue
        step_s, *rates = map(np.isfinite, _rates(_run(form, part)))
        count += int(step_s.sum()) or max(int(rate.sum()) for rate in rates) / MOST_BARS
    return count


MOST_BARS = 20
"""Times as often a bar may be printed as the lines that tell more."""
LEAST_BY_WORDS = 2
"""Steps from which lines without a known form count as a log."""
MOST_TRIED = 2_000
"""Lines from the first step on in which the form is looked for, before all are."""


def _without_bar(line: str) -> str:
    return _LINE["bar"].sub("", line) if "<" in line else line


def _parts(form: _LogFormat, lines: Iterable[str]) -> Iterator[_LogPart]:
    matched = [(line, _step_in(form, line)) for line in (line[:LONGEST_LINE] for line in lines)]
    rank = min((_rank(line) for line, iteration in matched if iteration is not None), default=-1)
    part, before, begun, epoch, done = _LogPart(), -1, False, 0, 0
    waiting: list[str] = []
    for line, iteration in matched:
        if iteration is None:
            waiting.append(line)
            begun = begun or bool(form.begins and form.begins in line)
            continue
        number = int(match[1]) if (match := _LINE["epoch"].search(line)) else epoch
        if iteration + done < before and number == epoch + 1:  # steps may start from 0 in each epoch
            done = before
        iteration, epoch = before + 1 if iteration < 0 else iteration + done, number
        if _rank(line) not in (rank, NO_RANK):
            part.others.append((iteration, line))
            continue
        if part.steps and (iteration < before or begun or form.times == "whole"):
            yield part
            part, iteration, done = _LogPart(header=waiting), iteration - done, 0
        elif part.steps:
            part.beside.setdefault(before, []).extend(waiting)
        else:
            part.header += waiting
        waiting, before, begun = [], iteration, False
        part.steps.append((iteration, line))
    if part.steps:
        part.beside.setdefault(before, []).extend(waiting)
        yield part


def _step_in(form: _LogFormat, line: str) -> int | None:
    """The number of the step that the line tells of; -1 for the next."""
    if form.times == "whole":
        return 0 if all(mark in line for mark in form.marks) else None
    match = form.iteration.search(line) if form.iteration and all(mark in line for mark in form.own) else None
    return (_whole(match[1]) if match.re.groups else -1) if match else None


def _whole(text: str) -> int:
    """``1.25k`` as a whole number."""
    return int(text) if text.isdigit() else round(float(text.rstrip("kM")) * SUFFIX.get(text[-1].upper(), 1.0))


NO_RANK = 10**6
"""Above every rank: that of a line without one."""


def _rank(line: str) -> int:
    """The rank that a launcher put before a line."""
    match = _LINE["rank"].match(line)
    return NO_RANK if match is None else int(match[match.lastindex or 1])


HIGHEST = ("allocated_bytes", "reserved_bytes")
"""Quantities of which the highest of all ranks counts; of others, that of the first line."""


READ = (*_FILE["quantities"], "loss")
"""The quantities that are read of each step."""


def _run(form: _LogFormat, part: _LogPart) -> RunLog:
    iterations = sorted({iteration for iteration, _ in part.steps})
    row = {iteration: i for i, iteration in enumerate(iterations)}
    columns = {quantity: np.full(len(iterations), np.nan) for quantity in READ}

    shown = dict[str, str]()

    def put(iteration: int, line: str, only: Sequence[str]) -> None:
        place = row[iteration]
        for of, value, words in _numbers(form, line):
            before = columns[of][place]
            if of in only and (math.isnan(before) or (of in HIGHEST and value > before)):
                columns[of][place], shown[of] = value, words
        if "loss" in only and math.isnan(columns["loss"][place]) and (match := _LINE["loss"].search(line)):
            columns["loss"][place] = float(match[match.lastindex or 1])

    for iteration, line in part.steps:
        put(iteration, line, READ)
    later = [of for of in READ if of not in ("lone_s", "loss" if np.isfinite(columns["loss"]).any() else "")]
    header_lines = part.header if form.title != UNKNOWN else ()
    for iteration, line in (*part.others, *((iterations[0], line) for line in header_lines)):
        put(iteration if iteration in row else iterations[0], line, HIGHEST)
    after_steps = _moved_behind(part) if any(map(_LINE["dict"].search, part.header)) else part.beside
    for iteration, after in after_steps.items():
        for line in after:
            put(iteration, line, later)
    header = "\n".join(part.header)[:MOST_HEADER]
    facts = _facts_in(header)
    if form.times == "whole":
        facts |= _tokens_of_whole(header, part.steps[0][1])
    batch = columns.pop("global_batch_size")
    kept, ramps = _kept_batch(batch[np.isfinite(batch)])
    facts |= dict.fromkeys(["global_batch_size"] * kept.size, int(kept.sum()))
    if any(np.isfinite(columns[of]).any() for of in ("step_s", "steps_per_s", "told_s")):
        shown.pop("lone_s", None)
    units = form.units or tuple(f'{_FILE["quantities"][of]} from "{words}"' for of, words in shown.items())
    form = replace(form, units=units)
    arguments = _arguments_in(header)
    run = _derived(form, np.array(iterations), columns, _clock(part, row), {**_from_arguments(arguments), **facts})
    lines = [*part.steps, *((iteration, line) for iteration, after in after_steps.items() for line in after)]
    number = dict(zip(iterations, run.iteration.tolist(), strict=True))
    return replace(
        run.only(np.isnan(batch) | np.isin(batch, kept)),
        printed=len(row),
        ramps=ramps,
        no_number=tuple(sorted({number[iteration] for iteration, line in lines if _LINE["no_number"].search(line)})),
        events=_without_gradient(lines, number),
        whole_losses=tuple(float(loss or other) for loss, other in _LINE["loss"].findall(header))
        if form.times == "whole"
        else None,
        loaded=int(loaded[-1]) if (loaded := _LINE["loaded"].findall(header)) else None,
        arguments=arguments,
        trainer=_trainer(form, arguments, "".join(_LINE["year"].findall(part.steps[0][1])[:1])),
        title=_title(run, header + part.steps[0][1], forked=arguments.get("deepspeed") == "True"),
        skipped=sum(int(match[1] or 1) for _, line in lines if (match := _LINE["skipped"].search(line))),
        causes={number[iteration]: cause for iteration, cause in _causes(part).items() if iteration in number},
        ranks_s=_rank_seconds(form, part),
        rank_skew=_rank_skew(part),
        config=_config_in(header),
    )


def _kept_batch(batches: FloatArray) -> tuple[FloatArray, bool]:
    """The batch whose steps count, if any is printed, and whether the batch ramps up: then the last one, else the
    commonest (the end of an epoch is smaller)."""
    ramps = bool((np.diff(batches) >= 0).all())
    sizes, counts = np.unique(batches, return_counts=True)
    return batches[-1:] if ramps else sizes[[counts.argmax()]], ramps


def _without_gradient(lines: Sequence[tuple[int, str]], number: Mapping[int, int]) -> tuple[str, ...]:
    """A sentence on the gradients that are no numbers, if those of the last two steps or more are not."""
    lost = {number[iteration] for iteration, line in lines if _LINE["no_gradient"].search(line)}
    last = list(takewhile(lambda step: step in lost, sorted(number.values(), reverse=True)))
    if len(last) < 2:
        return ()
    return (f"The gradient is nan from step {last[-1]:,} to the end ({len(last)} steps): none of them trains. {LOST}",)


LOST = "To do: resume from a checkpoint before; lower the learning rate, clip gradients, check the loss scale in fp16."


def _tokens_of_whole(header: str, line: str) -> dict[str, int]:
    """Tokens per step by the last count of tokens that TRL prints, and the run's seconds and steps per second."""
    counts, rates = _LINE["num_tokens"].findall(header), _LINE["of_whole"].findall(line)
    steps = round(math.prod(map(float, rates))) if len(rates) == 2 else 0
    return {"tokens_per_step": round(float(counts[-1]) / steps)} if counts and steps else {}


def _title(run: RunLog, text: str, *, forked: bool) -> str:
    """What a trainer that is built on another, or has its kind of bar, calls itself."""
    titles = [(kind, *row) for kind, rows in _FILE["titles"].items() for row in rows.items()]
    kind, own = next(((kind, own) for kind, pattern, own in titles if re.search(pattern, text)), ("", ""))
    if not own or run.title not in ("Hugging Face Trainer", "transformers"):
        return "Megatron-DeepSpeed" if forked else run.title
    return own if kind == "alike" else f"{own} ({run.title})"


def _moved_behind(part: _LogPart) -> dict[int, list[str]]:
    """The lines between steps by the step behind them, for a log that prints a step's loss before its bar."""
    iterations = sorted({iteration for iteration, _ in part.steps})
    behind = {step: part.beside[before] for before, step in pairwise(iterations) if before in part.beside}
    return {iterations[0]: part.header[-1:], **behind}


def _causes(part: _LogPart) -> dict[int, str]:
    """What the lines behind each step, or that step's own second line, say that the run does there."""
    causes: dict[int, set[str]] = {}
    lines = chain(part.steps, ((iteration, line) for iteration, after in part.beside.items() for line in after))
    for iteration, line in lines:
        for match in _CAUSES.finditer(line):
            causes.setdefault(iteration, set()).add(str(match.lastgroup).replace("_", " "))
    return {iteration: " and ".join(sorted(words)) for iteration, words in causes.items()}


def _numbers(form: _LogFormat, line: str) -> Iterator[tuple[str, float, str]]:
    """The numbers of a line, with what this trainer means by those that are said of nothing."""
    for of, value, words in numbers_in(line, form.keys, form.gb):
        yield form.means.get(of, of), value, words


def _rank_seconds(form: _LogFormat, part: _LogPart) -> dict[int, float]:
    """Median step of each rank that prints its own."""
    seconds: dict[int, list[float]] = {}
    for _, line in chain(part.steps, part.others) if part.others else ():
        for of, value, _ in _numbers(form, line):
            if of in ("step_s", "told_s", "device_tokens_per_s"):
                seconds.setdefault(_rank(line), []).append(1 / value if "tokens" in of else value)
    return {rank: float(np.median(values)) for rank, values in seconds.items()}


def _rank_skew(part: _LogPart) -> float:
    """Compute of the slowest rank over that of the fastest, minus 1; NaN without timers."""
    timers = [
        match.groups() for after in part.beside.values() for line in after if (match := _LINE["timers"].search(line))
    ]
    fastest, slowest = np.array(timers, dtype=float).reshape(-1, 2).sum(axis=0)
    return float(slowest / fastest) - 1 if fastest else float("nan")


def _clock(part: _LogPart, row: dict[int, int]) -> FloatArray:
    """Time at which each step's line was printed [s]; NaN for times that go back, which are of something else."""
    half, times = len(row) / 2, np.full(len(row), np.nan)
    stamps = ([(step, pattern.search(line)) for step, line in part.steps] for pattern in _CLOCKS)
    for iteration, match in next((pairs for pairs in stamps if sum(map(bool, dict(pairs).values())) > half), ()):
        if match and np.isnan(times[row[iteration]]):
            times[row[iteration]] = _seconds(match[match.lastindex or 1])
    back = np.diff(times) < 0
    return np.full(len(row), np.nan) if back.sum() > MOST_BACK * back.size else times


MOST_BACK = 0.2
"""Share of the lines at which a clock may start anew."""


def _seconds(text: str) -> float:
    if re.fullmatch(r"\d{1,20}(?:\.\d{1,20})?", text):
        return float(text) / (1e3 if len(text) >= MILLISECONDS and text.isdigit() else 1)
    if elapsed := _LINE["elapsed"].fullmatch(text):
        days, hours, minutes, seconds = (float(part or 0) for part in elapsed.groups())
        return 86400 * days + 3600 * hours + 60 * minutes + seconds
    text = re.sub(r"^(\d\d)/(\d\d)/(\d{4})", r"\3-\1-\2", text).replace("/", "-").replace(",", ".")
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return float("nan")


MILLISECONDS = 12
"""Digits from which whole seconds since 1970 are milliseconds."""


def _derived(
    form: _LogFormat, iteration: IntArray, columns: dict[str, Any], clock: FloatArray, facts: dict[str, int | str]
) -> RunLog:
    """The run, with step times derived from samples, tokens or, as the last resort, the clock."""
    if form.counts_samples:  # without a stated batch, by the largest that all counts are multiples of
        iteration = iteration // int(facts.get("global_batch_size") or max(np.gcd.reduce(iteration), 1))
    tokens, shares = columns["tokens_per_s"], columns.pop("mfu_number")
    times = [columns.pop(name) for name in ("step_s", "steps_per_s", "told_s", "seconds", "lone_s")]
    keyed = np.isfinite(times[0]).sum() > iteration.size / 2
    times[1] = 1 / times[1]
    if "tokens_per_s" not in form.means and not np.isfinite(columns["device_tokens_per_s"]).any():
        columns |= {"open_tokens_per_s": tokens, "tokens_per_s": columns["open_tokens_per_s"]}
    largest = np.nanmax(shares, initial=0)
    shares = shares / 100 if largest > LEAST_PERCENT else np.where(largest <= 1, shares, np.nan)
    columns["mfu"] = filled(columns["mfu"], shares)
    step_s = reduce(filled, (*times, columns.pop("step_tokens") / tokens))
    run = RunLog(
        trainer=form.trainer,
        title=form.title,
        iteration=iteration,
        step_s=step_s,
        **columns,
        clock_s=clock,
        times="" if form.title == BAR.title and keyed else form.times,
        facts=facts,
        units=form.units,
        prints_tokens=bool(np.isfinite([tokens, columns["device_tokens_per_s"]]).any()) or "tokens_per_step" in facts,
    ).knowing()
    if not form.clocked or not np.isnan(run.step_s).all():
        return run
    units = (*("step time from the lines' time stamps",) * (form.title == UNKNOWN), *form.units)
    return replace(run, step_s=_between(clock, iteration), units=units).knowing()


LEAST_PERCENT = 2.0
"""If a run prints an MFU above this, all are in percent; from 1 to it, that is not known."""


def _between(clock: FloatArray, iteration: IntArray) -> FloatArray:
    """Seconds per step from the times at which lines were printed. A clock of whole seconds gives equal intervals two
    neighbouring values: where a second is much of them, these have their mean."""
    passed, steps = np.diff(clock, prepend=np.nan), np.diff(iteration, prepend=iteration[0]).astype(float)
    known = (passed > 0) & (steps > 0)
    rate = np.where(known, passed / np.where(known, steps, 1.0), np.nan)
    if known.any() and not np.any(clock[np.isfinite(clock)] % 1):
        near = known & (np.abs(passed - np.nanmedian(rate) * steps) <= 1)
        equal = np.median(passed[known]) * SLOWER < 1 and near.any() and np.ptp(passed[near]) == 1
        rate[near] = passed[near].sum() / steps[near].sum() if equal else rate[near]
    return rate


def _from_arguments(arguments: dict[str, str]) -> dict[str, int | str]:
    words = {name: arguments.get(argument, "") for name, argument in _FILE["arguments"].items()}
    return {name: int(value) for name, value in words.items() if re.fullmatch(r"\d{1,12}", value)}


def _trainer(form: _LogFormat, arguments: dict[str, str], year: str) -> str:
    """The trainer's name for ``--framework``, with the year as release. Megatron's forks, and its releases before 2022,
    are recognized by their arguments."""
    megatron = form.title == MEGATRON.title
    if megatron and {"checkpoint_activations", "DDP_impl"} & set(arguments):
        year = year or "2021"
    name = "megatron-deepspeed" if megatron and arguments.get("deepspeed") == "True" else form.trainer
    return f"{name}@{year}" if year else name
