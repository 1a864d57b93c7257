"""PyTorch profiler (Kineto) traces: kernels with their operator, launch and step.

The file is decoded event by event, so memory grows with the number of kernels and operators, not with the file.
"""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import IO

from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.traces.kernel_trace import HostOperator, KernelTrace, Recorded, kernel_trace
from sartor.units import MICRO

CHUNK = 1 << 22
LONGEST_EVENT = 1 << 24
"""Maximum number of characters of one event."""
MUST = "must be a trace of PyTorch's profiler (JSON, or JSON in gzip)"
MOST = 2**53
"""Largest number accepted in an event."""
ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
ON_HOST = frozenset({"cuda_runtime", "cuda_driver"})


def read_kineto(path: str | Path, field: str = "TRACE") -> KernelTrace:
    """The kernels of a trace. Raises `InputError` for a file that is not a trace, is truncated, or holds no kernel."""
    source = Path(path)
    if not source.is_file():
        raise InputError(field, str(path), f"no such file; {MUST}")
    recorded = Recorded()
    try:
        with _opened(source) as stream:
            whole = _each_event(stream, recorded)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(field, str(path), f"must be readable ({error})") from None
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise InputError(field, str(path), f"{MUST}; {' '.join(str(error).split())[:100]}") from None
    if not whole:
        raise InputError(field, str(path), "is truncated in the middle of its events")
    if not recorded.kernels:
        raise InputError(field, str(path), "holds no GPU event; must be profiled with ProfilerActivity.CUDA")
    return kernel_trace(str(path), recorded)


def _opened(path: Path) -> IO[str]:
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return (
        gzip.open(path, "rt", encoding="utf-8", errors="replace")
        if packed
        else path.open(encoding="utf-8", errors="replace")
    )


def _each_event(stream: IO[str], recorded: Recorded) -> bool:
    """Keep every event; returns whether the list of events is complete."""
    decoder, buffer = json.JSONDecoder(), ""
    start = -1
    while start < 0:
        chunk = stream.read(CHUNK)
        buffer += chunk
        if buffer.lstrip()[:1] == "[":
            start = buffer.index("[") + 1
            break
        position = buffer.find('"traceEvents"')
        start = buffer.find("[", position) + 1 or -1 if position >= 0 else -1
        if start < 0 and not chunk:
            raise ValueError("it has no traceEvents")
    _properties(buffer[:start], recorded)
    position = start
    while True:
        position = _skip(buffer, position)
        if position < len(buffer) and buffer[position] == "]":
            _properties(buffer[position + 1 :][:LONGEST_EVENT] + stream.read(1 << 16), recorded)
            return True
        try:
            event, position = decoder.raw_decode(buffer, position)
        except ValueError:
            chunk = stream.read(CHUNK)
            if not chunk:
                return False
            buffer, position = buffer[position:] + chunk, 0
            if len(buffer) > LONGEST_EVENT + CHUNK:
                raise ValueError("one event is longer than any can be") from None
            continue
        if isinstance(event, dict):
            _keep(event, recorded)


def _skip(buffer: str, position: int) -> int:
    while position < len(buffer) and buffer[position] in " \n\r\t,":
        position += 1
    return position


def _properties(text: str, recorded: Recorded) -> None:
    """Device and distributed info, which are outside the list of events."""
    devices, who = _beside(text, "deviceProperties"), _beside(text, "distributedInfo")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        recorded.gpu = str(devices[0].get("name", ""))
    if isinstance(who, dict):
        rank, size = _int(who.get("rank")), _int(who.get("world_size"))
        recorded.rank, recorded.world_size = (None if rank < 0 else rank), (None if size < 0 else size)


def _beside(text: str, name: str) -> object:
    position = text.find(f'"{name}"')
    if position < 0:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, text.index(":", position) + 1 + _blank(text, position))[0]
    except ValueError:
        return None


def _blank(text: str, position: int) -> int:
    after = text[text.index(":", position) + 1 :]
    return len(after) - len(after.lstrip())


def _keep(event: JsonDict, recorded: Recorded) -> None:
    cat, args = event.get("cat"), event.get("args")
    begin, took = event.get("ts"), event.get("dur")
    if not isinstance(args, dict) or not isinstance(begin, int | float | str):
        return
    if not isinstance(cat, str) or event.get("ph") != "X":
        return
    begin_s, took_s = MICRO * _float(begin), MICRO * _float(took)
    name = str(event.get("name", ""))
    number = _int(args.get("External id", args.get("external id")))
    if cat in ON_DEVICE:
        where = _int(args.get("stream", event.get("tid")))
        recorded.kernels.append((begin_s, took_s, name, where, _int(args.get("correlation")), number))
    elif cat in ON_HOST:
        recorded.launches[_int(args.get("correlation"))] = begin_s, number, _thread(event)
        if "Synchronize" in name:
            recorded.waits.append((name, begin_s, begin_s + took_s))
    elif cat == "cpu_op":
        if number not in recorded.operators:
            recorded.threads.append(_thread(event))
        recorded.operators[number] = _operator(name, args, begin_s, begin_s + took_s)
    elif cat == "user_annotation" and name.startswith("ProfilerStep#"):
        recorded.steps.append((name, begin_s, begin_s + took_s))
    elif cat in ("python_function", "user_annotation"):
        recorded.add_frame(name, begin_s, begin_s + took_s)


def _operator(name: str, args: JsonDict, begin_s: float, end_s: float) -> HostOperator:
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


def _thread(event: JsonDict) -> object:
    """A thread's number or name; None for anything else."""
    thread = event.get("tid")
    return thread if isinstance(thread, int | str) else None


def _float(value: object) -> float:
    """A number of microseconds; 0 if it is not a number."""
    try:
        number = float(value) if isinstance(value, int | float | str) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return number if abs(number) < MOST else 0.0
