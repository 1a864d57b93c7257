"""The same runs as Nsight Systems would have exported them: Kineto's events as rows of its SQLite tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, "end" INT, deviceId INT, streamId INT, correlationId INT,
    globalPid INT, demangledName INT, shortName INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, "end" INT, globalTid INT, correlationId INT, nameId INT);
CREATE TABLE NVTX_EVENTS (start INT, "end" INT, eventType INT, text TEXT, textId INT, globalTid INT);
"""


def export(traces: Iterable[dict[str, Any]], path: Path, *, marked: bool = True) -> Path:
    """One process for each trace; without ``marked`` no step has a range."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(TABLES)
        names: dict[str, int] = {}
        for rank, trace in enumerate(traces):
            gpu = trace["deviceProperties"][0]["name"]
            database.execute("INSERT INTO TARGET_INFO_GPU VALUES (?, ?)", (rank, gpu))
            for event in trace["traceEvents"]:
                if marked or not event["name"].startswith("ProfilerStep"):
                    _row(database, names, event, rank)
        database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, name) for name, i in names.items()])
        database.commit()
    return path


def _row(database: sqlite3.Connection, names: dict[str, int], event: dict[str, Any], rank: int) -> None:
    begin, end = round(1e3 * event["ts"]), round(1e3 * (event["ts"] + event["dur"]))
    args, process = event["args"], (1000 + rank) << 24
    thread = process + int(event["tid"])
    known = names.setdefault(event["name"], len(names))
    if event["cat"] == "kernel":
        row = (begin, end, rank, args["stream"], args["correlation"], process, known, known)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    elif event["cat"] == "cuda_runtime":
        row = (begin, end, thread, args["correlation"], known)
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", row)
    else:
        sizes = f", sizes = {args['Input Dims']}" if "Input Dims" in args else ""
        text = f"{event['name']}, seq = 3, op_id = 5{sizes}" if event["cat"] == "cpu_op" else event["name"]
        row = (begin, end, 59, text.replace("ProfilerStep#", "iteration "), None, thread)
        database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", row)
