"""PyTorch profiler (Kineto) traces: kernels with the operator, the launch and the step that they belong to.

The file is decoded event by event, so that what is held grows with kernels and operators, not with the file.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.units import MICRO, FloatArray, IntArray

CHUNK = 1 << 22
LONGEST_EVENT = 1 << 24
"""Characters that one event may have."""
MUST = "must be a trace of PyTorch's profiler (JSON, or JSON in gzip)"
BEGINNING = re.compile(rb"\s*(?:\{\s*(?:[\"}]|\Z)|\[\s*(?:[{\]]|\Z))")
MOST = 2**53
"""Largest number that an event may say."""
DEEPEST = 200
"""Operators begun before a launch among which the one around it is looked for."""
ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
ON_HOST = frozenset({"cuda_runtime", "cuda_driver"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOperator:
    """An operator of the framework: its name and the dimensions of its inputs."""

    name: str
    dims: tuple[tuple[int, ...], ...] = ()
    begin_s: float = 0.0
    end_s: float = 0.0
    collective: str = ""
    """Of a collective: its name, else empty."""
    elements: int = 0
    """Of a collective: the larger of what goes in and comes out."""
    dtype: str = ""
    group_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTrace:
    """The kernels of one rank in the order in which they began, as columns."""

    path: str
    rank: int | None
    world_size: int | None
    gpu: str
    names: tuple[str, ...]
    name: IntArray
    """Index into ``names``."""
    begin_s: FloatArray
    end_s: FloatArray
    stream: IntArray
    operator: IntArray
    """Index into ``operators``; -1 where none is known."""
    launched_s: FloatArray
    """When the host launched it; NaN where no launch is recorded."""
    operators: tuple[HostOperator, ...]
    step: IntArray
    """Index into ``steps`` by the time of launch; -1 outside all of them."""
    steps: tuple[tuple[str, float, float], ...]
    """Marks of the profiler: name, begin and end on the host."""
    waits: tuple[tuple[str, float, float], ...] = ()
    """Calls in which the host waited for the device."""

    @property
    def span_s(self) -> float:
        """From the first kernel's begin to the last one's end."""
        return float(self.end_s.max() - self.begin_s.min()) if self.begin_s.size else 0.0

    def operator_name(self, index: int) -> str:
        """The operator of a kernel, or the kernel's own name."""
        known = int(self.operator[index])
        return self.operators[known].name if known >= 0 else self.names[int(self.name[index])]


def read_kineto(path: str | Path, field: str = "TRACE") -> KernelTrace:
    """The kernels of a trace. Raises `InputError` for what is none, is cut off, or holds no kernel."""
    source = Path(path)
    if not source.is_file():
        raise InputError(field, str(path), f"no such file; {MUST}")
    kept = _Kept()
    try:
        with _opened(source) as stream:
            whole = _each_event(stream, kept)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(field, str(path), f"must be readable ({error})") from None
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(field, str(path), f"{MUST}; {' '.join(str(error).split())[:100]}") from None
    if not whole:
        raise InputError(field, str(path), "ends early, in the middle of its events; is it whole?")
    if not kept.kernels:
        raise InputError(field, str(path), "holds no GPU event; must be profiled with ProfilerActivity.CUDA")
    return _columns(str(path), kept)


def is_trace(path: str | Path) -> bool:
    """Whether a file is gzip or begins as a JSON object or a list of them; lines of logs begin with [ as well."""
    with Path(path).open("rb") as stream:
        head = stream.read(1024)
    return head[:2] == b"\x1f\x8b" or BEGINNING.match(head) is not None


def _opened(path: Path) -> IO[str]:
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return (
        gzip.open(path, "rt", encoding="utf-8", errors="replace")
        if packed
        else path.open(encoding="utf-8", errors="replace")
    )


@dataclass(slots=True)
class _Kept:
    """What is kept while events pass."""

    properties: JsonDict = field(default_factory=dict)
    kernels: list[tuple[float, float, str, int, int, int]] = field(default_factory=list)
    """begin, duration, name, stream, correlation, external id"""
    launches: dict[int, tuple[float, int, object]] = field(default_factory=dict)
    """correlation -> when, external id, thread"""
    operators: dict[int, HostOperator] = field(default_factory=dict)
    threads: list[object] = field(default_factory=list)
    """Of each operator."""
    steps: list[tuple[str, float, float]] = field(default_factory=list)
    waits: list[tuple[str, float, float]] = field(default_factory=list)


def _each_event(stream: IO[str], kept: _Kept) -> bool:
    """Hand every event on; whether the list of them is whole."""
    decoder, buffer = json.JSONDecoder(), ""
    start = -1
    while start < 0:
        more = stream.read(CHUNK)
        buffer += more
        if buffer.lstrip()[:1] == "[":
            start = buffer.index("[") + 1
            break
        at = buffer.find('"traceEvents"')
        start = buffer.find("[", at) + 1 or -1 if at >= 0 else -1
        if start < 0 and not more:
            raise ValueError("it has no traceEvents")
    kept.properties = _properties(buffer[:start])
    at = start
    while True:
        at = _skip(buffer, at)
        if at < len(buffer) and buffer[at] == "]":
            kept.properties |= _properties(buffer[at + 1 :][:LONGEST_EVENT] + stream.read(1 << 16))
            return True
        try:
            event, at = decoder.raw_decode(buffer, at)
        except ValueError:
            more = stream.read(CHUNK)
            if not more:
                return False
            buffer, at = buffer[at:] + more, 0
            if len(buffer) > LONGEST_EVENT + CHUNK:
                raise ValueError("one event is longer than any can be") from None
            continue
        if isinstance(event, dict):
            _keep(event, kept)


def _skip(buffer: str, at: int) -> int:
    while at < len(buffer) and buffer[at] in " \n\r\t,":
        at += 1
    return at


def _properties(text: str) -> JsonDict:
    """Device and distribution, which stand beside the events."""
    found: JsonDict = {}
    for name in ("deviceProperties", "distributedInfo"):
        at = text.find(f'"{name}"')
        if at < 0:
            continue
        try:
            found[name], _ = json.JSONDecoder().raw_decode(text, text.index(":", at) + 1 + _blank(text, at))
        except ValueError:
            continue
    return found


def _blank(text: str, at: int) -> int:
    after = text[text.index(":", at) + 1 :]
    return len(after) - len(after.lstrip())


def _keep(event: dict[str, Any], kept: _Kept) -> None:
    cat, args = event.get("cat"), event.get("args")
    begin, took = event.get("ts"), event.get("dur")
    if not isinstance(args, dict) or not isinstance(begin, int | float | str) or event.get("ph") != "X":
        return
    begin_s, took_s = MICRO * _float(begin), MICRO * _float(took)
    name = str(event.get("name", ""))
    number = _int(args.get("External id", args.get("external id")))
    if cat in ON_DEVICE:
        where = _int(args.get("stream", event.get("tid")))
        kept.kernels.append((begin_s, took_s, name, where, _int(args.get("correlation")), number))
    elif cat in ON_HOST:
        kept.launches[_int(args.get("correlation"))] = begin_s, number, event.get("tid")
        if "Synchronize" in name:
            kept.waits.append((name, begin_s, begin_s + took_s))
    elif cat == "cpu_op":
        if number not in kept.operators:
            kept.threads.append(event.get("tid"))
        kept.operators[number] = _operator(name, args, begin_s, begin_s + took_s)
    elif cat == "user_annotation" and name.startswith("ProfilerStep#"):
        kept.steps.append((name, begin_s, begin_s + took_s))


def _operator(name: str, args: dict[str, Any], begin_s: float, end_s: float) -> HostOperator:
    dims = args.get("Input Dims")
    shapes = (
        [d for d in dims if isinstance(d, list) and d and all(_int(n) >= 0 for n in d)]
        if isinstance(dims, list)
        else []
    )
    return HostOperator(
        name=name,
        dims=tuple(tuple(d) for d in shapes[:8]),
        begin_s=begin_s,
        end_s=end_s,
        collective=str(args.get("Collective name") or ""),
        elements=max(_int(args.get("In msg nelems")), _int(args.get("Out msg nelems")), 0),
        dtype=str(args.get("dtype") or _first_type(args.get("Input type"))),
        group_size=max(_int(args.get("Group size")), 0),
    )


def _first_type(types: object) -> str:
    words = [word for word in types if isinstance(word, str) and word] if isinstance(types, list) else []
    return words[0] if words else ""


def _int(value: object) -> int:
    return value if isinstance(value, int) and abs(value) < MOST else -1


def _known(value: object) -> int | None:
    return None if _int(value) < 0 else _int(value)


def _float(value: object) -> float:
    """A number of microseconds; 0 for what is none."""
    try:
        number = float(value) if isinstance(value, int | float | str) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return number if abs(number) < MOST else 0.0


def _columns(path: str, kept: _Kept) -> KernelTrace:
    kept.kernels.sort(key=lambda row: row[0])
    begin = np.array([row[0] for row in kept.kernels])
    took = np.array([row[1] for row in kept.kernels])
    names = {name: i for i, name in enumerate(dict.fromkeys(row[2] for row in kept.kernels))}
    index = {number: i for i, number in enumerate(kept.operators)}
    launches = [kept.launches.get(row[4], (float("nan"), -1, None)) for row in kept.kernels]
    around = _Around(kept)
    of = [
        index.get(launch[1], index.get(row[5], -1)) if launch[1] in index or row[5] in index else around(*launch)
        for row, launch in zip(kept.kernels, launches, strict=True)
    ]
    launched = np.array([launch[0] for launch in launches])
    steps = sorted(set(kept.steps), key=lambda mark: mark[1])
    who = kept.properties.get("distributedInfo")
    who = who if isinstance(who, dict) else {}
    return KernelTrace(
        path=path,
        rank=_known(who.get("rank")),
        world_size=_known(who.get("world_size")),
        gpu=_gpu(kept.properties.get("deviceProperties")),
        names=tuple(names),
        name=np.array([names[row[2]] for row in kept.kernels], dtype=np.int64),
        begin_s=begin,
        end_s=begin + np.maximum(took, 0.0),
        stream=np.array([row[3] for row in kept.kernels], dtype=np.int64),
        operator=np.array(of, dtype=np.int64),
        launched_s=launched,
        operators=tuple(kept.operators.values()),
        step=_steps(np.where(np.isnan(launched), begin, launched), steps),
        steps=tuple(steps),
        waits=tuple(sorted(kept.waits, key=lambda wait: wait[1])),
    )


class _Around:
    """The innermost operator that ran on a thread when a launch was made: older traces have no common number."""

    def __init__(self, kept: _Kept) -> None:
        self.of: dict[object, list[tuple[float, float, int]]] = {}
        for i, (operator, thread) in enumerate(zip(kept.operators.values(), kept.threads, strict=True)):
            self.of.setdefault(thread, []).append((operator.begin_s, operator.end_s, i))
        for each in self.of.values():
            each.sort()

    def __call__(self, at_s: float, number: int, thread: object) -> int:
        begun = self.of.get(thread, [])
        last = bisect_right(begun, (at_s, float("inf"), 0))
        for begin_s, end_s, i in reversed(begun[max(last - DEEPEST, 0) : last]):
            if begin_s <= at_s <= end_s:
                return i
        return -1


def _gpu(properties: object) -> str:
    first = properties[0] if isinstance(properties, list) and properties else {}
    return str(first.get("name", "")) if isinstance(first, dict) else ""


def _steps(at: FloatArray, steps: list[tuple[str, float, float]]) -> IntArray:
    """The step during which each kernel was launched."""
    found = np.full(at.size, -1, dtype=np.int64)
    for i, (_, begin_s, end_s) in enumerate(steps):
        found[(at >= begin_s) & (at < end_s)] = i
    return found
