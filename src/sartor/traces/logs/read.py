"""A training log as the runs it holds; the trainer is recognized by its step lines.

``formats.toml`` has what the trainers print: patterns of numbers with their units, and facts about the plan.
"""

from __future__ import annotations

import csv
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, pairwise, takewhile
from pathlib import Path

import numpy as np

from sartor.bounded import decoded, packaged_toml, read_bytes, unpacked
from sartor.errors import InputError
from sartor.hardware.catalog import GPUS
from sartor.json_types import JsonMap
from sartor.traces.logs.run_log import SLOWER, RunLog, filled
from sartor.units import GIB, BoolArray, FloatArray, IntArray, format_seconds, format_share

NUMBER = r"([0-9][0-9,]{0,20}(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,3})?)"
HUMAN = NUMBER + r"([KMGTB]?)"
"""A number with a suffix such as K or M, as nanotron prints."""
KEY_END = r"\)?['\"]?(?:\s{0,2}[:=]\s{0,2}['\"]?|\s)"
"""Between a key and its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """One number in a line: its quantity, pattern and unit in SI."""

    of: str
    """``step_s``, ``steps_per_s``, ``tokens_per_s``, ``device_tokens_per_s``, ``samples_per_s``, ``flops_per_s``,
    ``allocated_bytes``, ``reserved_bytes``, ``mfu``, or a whole-number fact (``global_batch_size``)."""
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
    times: str = ""
    """As in ``RunLog``."""
    units: tuple[str, ...] = field(default_factory=tuple)


_FILE = packaged_toml("traces/logs", "formats.toml")
UNITS = {"ms": 1e-3, "MiB": 2.0**20, "GiB": GIB, "GB": 1e9, "mega": 1e6, "tera": 1e12, "percent": 0.01}
"""Units of ``formats.toml`` in SI."""


def _format(row: JsonMap) -> _LogFormat:
    """A row of ``formats.toml``."""
    texts = {name: tuple(row[name]) for name in ("marks", "units")}
    patterns = {name: re.compile(row[name]) if name in row else None for name in ("iteration", "clock")}
    readings = {name: tuple(map(_reading, row.get(name, ()))) for name in ("readings", "beside")}
    return _LogFormat(**{**row, **texts, **patterns, **readings})


def _reading(row: JsonMap) -> _Reading:
    number = HUMAN if row.get("number") == "human" else NUMBER
    before = row.get("before") or f"(?i){row['key']}{KEY_END}"
    where = before + r"\s{0,12}" + number + row.get("after", "")
    return _Reading(of=row["of"], where=re.compile(where), unit=UNITS.get(row.get("unit", ""), 1.0))


FORMATS = tuple(map(_format, _FILE["format"]))
BY_WORDS = tuple(
    _format({**_FILE["by_words"], "iteration": pattern, "beside": _FILE["by_words"]["readings"]})
    for pattern in _FILE["by_words"].pop("iterations")
)
"""Forms of a trainer that has no row."""
MEGATRON = next(form for form in FORMATS if form.title == "Megatron-LM")

RANK = re.compile(
    r"^\s{0,4}(?:\[(\d{1,6})\]:|\[\d{1,6},(\d{1,6})\]<std(?:out|err)>:|(\d{1,6}): )"
    r"|^.{0,120}?\[(?:default|rank)(\d{1,6})\]:"
)
"""The rank that a launcher puts before each line; of times and rates only the lowest one's lines count."""
NO_NUMBER = re.compile(r"loss['\"]?\s{0,3}[:=]\s{0,12}'?nan\b|nan iterations:\s{0,8}[1-9]", re.IGNORECASE)
"""A step line whose loss is not a number."""
_LOSS = re.compile(
    r"(?:\blm[ _-]loss|\bloss(?: train)?|\bcross-entropy-loss|(?<!\w)(?:reduced_)?train_loss"
    r"|\btrain/(?:crossentropy)?loss)['\"]?\s{0,3}[:=]?\s{0,12}'?([0-9.]{1,20}(?:[eE][+-]?\d{1,3})?)(?![\w.])",
    re.IGNORECASE,
)
NO_GRADIENT = re.compile(r"grad[_ ]norm['\"]?\s{0,3}[:=]\s{0,12}'?nan\b", re.IGNORECASE)
"""A step line whose gradient is not a number. Fp16 has some while its loss scale falls: only those to the end count."""
_SKIPPED = re.compile(r"skipped iterations:\s{0,8}([1-9]\d{0,8})|(OVERFLOW)! Rank 0 Skipping step")
_TIMERS = re.compile(r"(?:forward|backward)-compute \.{2,60}: \((\d{1,12}\.\d{1,6}), (\d{1,12}\.\d{1,6})\)")
"""Megatron's timers of the fastest and of the slowest rank."""
_STAMPS = re.compile(
    r"(\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)|(\d\d/\d\d/\d{4} \d\d:\d\d:\d\d)"
    r"|^[IWEF]\d{4} (\d\d:\d\d:\d\d\.\d{1,6})|\[((?:\d{1,4}:)?\d\d:\d\d)<"
)
"""Times that launchers, loggers and progress bars put on a line."""


DUMPED = re.compile(r"\b([a-zA-Z]\w{1,60}) \.{3,60} (.{1,400})$")
"""A line of Megatron's dump of arguments: ``  hidden_size .......... 4096``, behind any prefix."""

_FACTS: Mapping[str, Sequence[str]] = _FILE["facts"]
_WORDS: Mapping[str, Mapping[str, str]] = _FILE["words"]
_CAUSES = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _FILE["causes"].items()))
_AXES_OF_NAME = {"pp": "pp", "tp": "tp", "cp": "cp", "ep": "ep", "mbs": "microbatch_size", "gbs": "global_batch_size"}
_NAMED = re.compile(r"(?<![a-zA-Z0-9])(pp|tp|cp|ep|mbs|gbs|seq)(\d{1,9})(?![0-9])")
_NODES = re.compile(r"(?<![a-zA-Z0-9])(\d{1,5})n(\d{1,3})g(?![a-zA-Z0-9])")
LEAST_NAMED = 3
"""Least number of parts in the name of a configuration, such as ``pp4-cp1-ep8-mbs1``."""
_CONFIG = re.compile(r"^(?:.{0,200})Model config \w{1,60}Config (?={)", re.MULTILINE)
"""What transformers puts before a model's configuration."""
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
    for name, patterns in _FILE["texts"].items():
        stated_text = next((match[1] for pattern in patterns if (match := re.search(pattern, text))), None)
        if stated_text:
            facts[name] = stated_text
    local = int(facts.get("microbatch_size", 0)) * int(facts.pop("gradient_accumulation", 0))
    # The trainer's own product has no other factor than the processes; PaddleNLP's leaves out tensor parallelism.
    if local and "num_devices" not in facts and "(per device)" not in text:
        facts["num_devices"] = int(facts.get("global_batch_size", 0)) // local
    for name, words in _WORDS.items():
        stated_word = next((word for pattern, word in words.items() if re.search(pattern, text)), None)
        if stated_word:
            facts[name] = stated_word
    return facts


def _config_in(text: str) -> JsonMap:
    """The model's configuration that transformers logs; empty without one."""
    match = _CONFIG.search(text)
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
LARGEST = 1e30
"""Larger numbers are ignored."""
MUST = (
    f"must be a training log of {', '.join(dict.fromkeys(form.title.split(' (')[0] for form in FORMATS))}, or another "
    "with a step's number, its loss and its time or tokens/s"
)

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
    text = _rows_of_blocks(_rows_of(text))
    lines = text.splitlines()
    form = _format_of(text, lines)
    if form is None:
        ends = "".join(f" {event.replace('after step 0', 'before its first step')}" for event in _ended(lines, 0))
        raise InputError(field, name, f"holds no line of a training step that is known; {MUST}{ends and '.' + ends}")
    parts = list(_parts(form, lines if form.marks else [_BAR.sub("", line) for line in lines]))
    heads = [*(part.header for part in parts), []][1:]
    runs = list[RunLog]()
    for part, head in zip(parts, heads, strict=True):
        run, last = _run(form, part), part.steps[-1][0]
        runs.append(replace(run, events=(*run.events, *_ended([*part.beside.get(last, ()), *head], last))))
    timed_runs = [run for run in runs if any(np.isfinite(rate).any() for rate in _rates(run))]
    if not timed_runs:
        raise InputError(field, name, f"has {form.title} lines but no step time in them; must hold at least one step")
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


_ENDS = {name: re.compile(pattern) for name, pattern in _FILE["ends"].items()}
_GIB = r" ([\d.]{1,12}) GiB"
_ASKED, _TOTAL, _FREE, _UNUSED = (
    re.compile(words)
    for words in (
        f"Tried to allocate{_GIB}",
        f"total capacity of{_GIB}",
        rf"{_GIB[1:]} (?:is )?free",
        f"and{_GIB} is reserved by PyTorch but unallocated",
    )
)


def _ended(after: Sequence[str], step: int) -> tuple[str, ...]:
    """A sentence on what stopped the run, by the lines after its last step; empty if nothing did."""
    text = "\n".join(after)[-MOST_HEADER:]
    matches = {name: match for name, pattern in _ENDS.items() if (match := pattern.search(text))}
    if "Traceback" not in text:
        matches.pop("error", None)
    name = next(iter(matches), "")
    if name == "memory":
        return (_out_of_memory(text, step),)
    last_error = [match[1].strip() for match in _ENDS["error"].finditer(text)][-1:] if name == "error" else []
    words = {
        "timeout": "stopped after step {step} in a timeout of NCCL. To do: find the rank that came late: its log and "
        "stack (TORCH_NCCL_TRACE_BUFFER_SIZE, py-spy), its GPU (Xid errors) and its network.",
        "terminated": "was stopped from outside after step {step} (SIGTERM: time limit, preemption or cancelled). To "
        "do: ask for more time, or save a checkpoint on the signal.",
        "killed": "was killed after step {step} (SIGKILL), mostly as the host's memory is full. To do: fewer loader "
        "workers, and look at the host's memory (dmesg).",
        "error": "stopped after step {step} with an error: {error}",
        "exit_code": "stopped after step {step} with exit code {error}. To do: read the log of the rank that failed "
        "first.",
    }
    error = last_error[0] if last_error else matches[name][1] if name == "exit_code" else ""
    return (f"The run {words[name].format(step=f'{step:,}', error=error)}",) if name else ()


def _out_of_memory(text: str, step: int) -> str:
    """What ran out, by PyTorch's own words, and what would help."""
    asked, total, free, unused = (
        float(match[1]) if (match := pattern.search(text)) else math.nan for pattern in (_ASKED, _TOTAL, _FREE, _UNUSED)
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


_BLOCK = re.compile(r'"time_ms": (\d{10,16}).{0,200}"key": "block_(start|stop)".{0,400}?"samples_count": (\d{1,12})')
_MLPERF_BATCH = re.compile(r'"key": "global_batch_size", "value": (\d{1,9})')


def _rows_of_blocks(text: str) -> str:
    """A submission to MLPerf with the mean step of each block of training, where it logs no step of its own."""
    batch = _MLPERF_BATCH.search(text) if ":::MLLOG" in text and '"train_step_tim' not in text else None
    if batch is None or re.search('"(?:tracked_stats|throughput)".{0,400}?"samples_count"', text):
        return text
    lines, begun, before = [], math.nan, 0
    for line in text.splitlines():
        lines.append(line)
        if not (match := _BLOCK.search(line)):
            continue
        now, done = int(match[1]) / 1e3, int(match[3])
        if match[2] == "stop" and done > before:
            step_s = (now - begun) / (done - before) * int(batch[1])
            metadata = f'{{"key": "train_step_time", "value": {step_s:.6f}, "metadata": {{"samples_count": {done}}}}}'
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
    if form and form.times != "smoothed":
        return form
    least = max(best // MOST_BARS, LEAST_BY_WORDS - 1)
    return _by_words([_BAR.sub("", line) for line in lines[:MOST_TRIED]], least) or form


MOST_BARS = 20
"""Times as often a bar may be printed as the lines that tell more."""
_BAR = re.compile(r"^.{0,120}?\d{1,3}%.{0,400}?\d{1,12}/\d{1,12} \[[^\]]{0,200}\]")
"""A progress bar, with what stands before it."""
LEAST_BY_WORDS = 3
"""Steps from which lines without a known form count as a log."""


def _by_words(lines: Sequence[str], most: int) -> _LogFormat | None:
    """The form of an unknown trainer that gives most steps with a loss and a time or rate; its ``units`` say from which
    words these are read. None if none gives more than ``most``: a bar may be of something that is loaded before."""
    best = None
    for form in BY_WORDS:
        for part in _parts(form, lines):
            texts = ("\n".join([line, *part.beside.get(step, ())]) for step, line in part.steps)
            losses = [text for text in texts if "loss" in text.lower()]
            if len(losses) <= max(most, len(part.steps) / 2):
                continue
            run = _run(form, part)
            timed = max(int(np.isfinite(rate).sum()) for rate in _rates(run))
            if timed > most:
                units = _places(form, losses[-1], timed=bool(np.isfinite(run.step_s).any()))
                best, most = replace(form, units=units), timed
    return best


def _places(form: _LogFormat, text: str, *, timed: bool) -> tuple[str, ...]:
    """From which words of a step each number is read, in sentences. ``timed``: its time is known."""
    matches = {reading.of: match[0] for reading in form.readings if (match := reading.where.search(text))}
    clocked = ("step time from the lines' time stamps",) * (timed and not {"step_s", "steps_per_s"} & set(matches))
    words = (f'{_FILE["quantities"][of]} from "{" ".join(found.split())[-SHOWN:]}"' for of, found in matches.items())
    return (*clocked, *words)


MOST_TRIED = 20_000
"""Lines in which the form of an unknown trainer is looked for."""
SHOWN = 40
"""Characters that show where a number is read."""


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
        iteration = _whole(match[1]) if match else 0
        if epoch := _EPOCH.match(line):
            iteration += int(epoch[1]) * int(epoch[2])
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


def _whole(text: str) -> int:
    """``1.25k`` as a whole number."""
    return int(text) if text.isdigit() else round(float(text.rstrip("kM")) * _SUFFIX[text[-1].upper()])


_EPOCH = re.compile(r"\s{0,4}Epoch (\d{1,7}): .{0,400}?[|%] {0,3}\d{1,12}/(\d{1,12}) \[")
"""The bar of one epoch of Lightning, which starts from 0 in the next."""
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
    quantities = {*(reading.of for reading in (*form.readings, *form.beside)), "loss"}
    columns = {quantity: np.full(len(iterations), np.nan) for quantity in quantities}

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
        put((*form.readings, LOSS), iteration, line)
    beside = form.beside if np.isfinite(columns["loss"]).any() else (*form.beside, LOSS)
    highest = [reading for reading in form.readings if reading.of in HIGHEST]
    for iteration, line in part.others:
        put(highest, iteration if iteration in row else iterations[0], line)
    for line in part.header if form.marks else ():
        put(form.beside, iterations[0], line)
    after_steps = _moved_behind(part) if any(_IN_LOSS.search(line) for line in part.header) else part.beside
    for iteration, after in after_steps.items():
        for line in after:
            put(beside, iteration, line)
    header = "\n".join(part.header)[:MOST_HEADER]
    facts = _facts_in(header)
    if form.iteration is None:
        facts |= _tokens_of_whole(header, part.steps[0][1])
    last_batch = _of_last_batch(columns)
    batch = columns.pop("global_batch_size", None)
    if batch is not None and np.isfinite(batch).any():
        facts["global_batch_size"] = int(batch[np.isfinite(batch)][-1])
    run = _derived(
        form, np.array(iterations), columns, _clock(form, part, row), facts, _arguments_in(header), _year(part)
    )
    lines = [*part.steps, *((iteration, line) for iteration, after in after_steps.items() for line in after)]
    number = dict(zip(iterations, run.iteration.tolist(), strict=True))
    return replace(
        run.only(last_batch),
        printed=len(row),
        no_number=tuple(sorted({number[iteration] for iteration, line in lines if NO_NUMBER.search(line)})),
        events=_without_gradient(lines, number),
        whole_losses=tuple(float(loss) for loss in _LOSS.findall(header)) if form.iteration is None else None,
        loaded=int(loaded[-1]) if (loaded := _LOADED.findall(header)) else None,
        title=_title(run, header + part.steps[0][1]),
        skipped=sum(int(match[1] or 1) for _, line in lines if (match := _SKIPPED.search(line))),
        causes={number[iteration]: cause for iteration, cause in _causes(part).items() if iteration in number},
        ranks_s=_rank_seconds(form, part),
        rank_skew=_rank_skew(part),
        config=_config_in(header),
    )


def _without_gradient(lines: Sequence[tuple[int, str]], number: Mapping[int, int]) -> tuple[str, ...]:
    """A sentence on the gradients that are no numbers, if those of the last two steps or more are not."""
    lost = {number[iteration] for iteration, line in lines if NO_GRADIENT.search(line)}
    last = list(takewhile(lambda step: step in lost, sorted(number.values(), reverse=True)))
    if len(last) < 2:
        return ()
    return (f"The gradient is nan from step {last[-1]:,} to the end ({len(last)} steps): none of them trains. {LOST}",)


LOST = "To do: resume from a checkpoint before; lower the learning rate, clip gradients, check the loss scale in fp16."


LOSS = _Reading(of="loss", where=_LOSS)
_IN_LOSS = re.compile(r"^\{'loss': ")
_LOADED = re.compile(r"(?:loaded checkpoint .{1,400} at iteration|[Ll]oading the checkpoint at step) (\d{1,12})")


_NUM_TOKENS = re.compile(r"'num_tokens': (\d{1,18}(?:\.\d{1,3})?)")
_OF_WHOLE = re.compile(r"'train_(?:runtime|steps_per_second)': '?([\d.]{1,20})")


def _tokens_of_whole(header: str, line: str) -> dict[str, int]:
    """Tokens per step by the last count of tokens that TRL prints, and the run's seconds and steps per second."""
    counts, rates = _NUM_TOKENS.findall(header), _OF_WHOLE.findall(line)
    steps = round(math.prod(map(float, rates))) if len(rates) == 2 else 0
    return {"tokens_per_step": round(float(counts[-1]) / steps)} if counts and steps else {}


def _title(run: RunLog, text: str) -> str:
    """What a trainer that is built on another, or has its kind of bar, calls itself."""
    titles = [(kind, *row) for kind, rows in _FILE["titles"].items() for row in rows.items()]
    kind, own = next(((kind, own) for kind, pattern, own in titles if re.search(pattern, text)), ("", ""))
    if not own or run.title not in ("Hugging Face Trainer", "transformers"):
        return run.title
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


def _rank_seconds(form: _LogFormat, part: _LogPart) -> dict[int, float]:
    """Median step of each rank that prints its own."""
    seconds: dict[int, list[float]] = {}
    for _, line in chain(part.steps, part.others) if part.others else ():
        for reading in form.readings:
            if reading.of in ("step_s", "device_tokens_per_s") and (value := _value(reading, line)):
                seconds.setdefault(_rank(line), []).append(value if reading.of == "step_s" else 1 / value)
    return {rank: float(np.median(values)) for rank, values in seconds.items()}


def _rank_skew(part: _LogPart) -> float:
    """Compute of the slowest rank over that of the fastest, minus 1; NaN without timers."""
    timers = [match.groups() for after in part.beside.values() for line in after if (match := _TIMERS.search(line))]
    fastest, slowest = np.array(timers, dtype=float).reshape(-1, 2).sum(axis=0)
    return float(slowest / fastest) - 1 if fastest else float("nan")


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
    for iteration, line in part.steps:
        match = (form.clock or _STAMPS).search(line)
        if match and np.isnan(times[row[iteration]]):
            times[row[iteration]] = _seconds(match[match.lastindex or 1])
    return times


def _seconds(text: str) -> float:
    if re.fullmatch(r"\d{1,20}(?:\.\d{1,20})?", text):
        return float(text) / (1e3 if len(text) >= MILLISECONDS and text.isdigit() else 1)
    if elapsed := _ELAPSED.fullmatch(text):
        days, hours, minutes, seconds = (float(part or 0) for part in elapsed.groups())
        return 86400 * days + 3600 * hours + 60 * minutes + seconds
    text = re.sub(r"^(\d\d)/(\d\d)/(\d{4})", r"\3-\1-\2", text).replace("/", "-").replace(",", ".")
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return float("nan")


MILLISECONDS = 12
"""Digits from which whole seconds since 1970 are milliseconds."""
_ELAPSED = re.compile(
    r"(?:(\d{1,4})(?: days?, |d ))?(?:(?:(\d{1,4})(?::|h ))?(\d{1,2})(?::|m ))?(\d{1,2}(?:\.\d{1,6})?)s?"
)


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
    if form.counts_samples:  # without a stated batch, by the largest that all counts are multiples of
        iteration = iteration // int(facts.get("global_batch_size") or max(np.gcd.reduce(iteration), 1))
    run = RunLog(
        trainer=_trainer(form, arguments, year),
        title="Megatron-DeepSpeed" if arguments.get("deepspeed") == "True" else form.title,
        iteration=iteration,
        step_s=filled(columns.get("step_s", empty), 1 / columns.get("steps_per_s", empty)),
        tokens_per_s=columns.get("tokens_per_s", empty),
        device_tokens_per_s=columns.get("device_tokens_per_s", empty),
        samples_per_s=columns.get("samples_per_s", empty),
        flops_per_s=columns.get("flops_per_s", empty),
        allocated_bytes=columns.get("allocated_bytes", empty),
        reserved_bytes=columns.get("reserved_bytes", empty),
        mfu=columns.get("mfu", empty),
        loss=columns["loss"],
        clock_s=clock,
        times=form.times,
        facts=facts,
        arguments=arguments,
        units=form.units,
        prints_tokens=bool({"tokens_per_s", "device_tokens_per_s"} & set(columns)) or "tokens_per_step" in facts,
    ).knowing()
    if form.clock is None or not np.isnan(run.step_s).all():
        return run
    return replace(run, step_s=_between(clock, iteration)).knowing()


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
    return {name: int(value) for name, value in words.items() if re.fullmatch(r"\d{1,12}", value)}


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
    return "".join(_YEAR.findall(part.steps[0][1])[:1])
