"""The process of a search started over HTTP (`web.studies`): it writes the study, and prints a status at its end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from sartor import api, interrupts
from sartor.api.words import size_of
from sartor.designs.ask import objective_of
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.model.workload import Phase
from sartor.web.arguments import model_of, plain_name
from sartor.web.guard import Reply, answered
from sartor.web.work import Answerer, limit_memory

SAME = (
    "num_devices",
    "global_batch_size",
    "seq_len",
    "area_mm2",
    "power_w",
    "hbm_gib",
    "objective",
    "tolerance",
    "set",
)
"""Fields of ``api.design``."""
LONGEST_S = 3600.0
BEHIND = 5
"""Added to the process's niceness, so that the page's requests go first."""


def main(words: Sequence[str]) -> None:
    """Search for the question on standard input (preceded by a line with its length) until that is closed."""
    path, most_bytes = words
    interrupts.listen()
    if hasattr(os, "nice"):
        os.nice(BEHIND)
    limit_memory(int(most_bytes))
    body = sys.stdin.buffer.read(int(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_input, daemon=True).start()
    with interrupts.patient():
        reply = Answerer().fresh("design", {"study": path}, body)
        _say(reply)


def read(words: Sequence[str]) -> None:
    """Read a large study (uploaded or watched) in this process, under its own memory limit."""
    name, field, path, most_bytes = words
    interrupts.deaf()
    limit_memory(int(most_bytes))
    _say(Answerer().fresh(name, {field: path}, b""))


def _say(reply: Reply) -> None:
    sys.stdout.buffer.write(b"%d\n%b" % (reply.status, reply.body))
    sys.stdout.buffer.flush()


def _end_with_input() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def searched(body: JsonMap, study: str) -> Reply:
    """Run the search of a request and keep it in ``study``. Raises ``InputError``."""
    answer = api.design(**asked_of(body), study=Path(study))
    return answered("design", {"status": answer.result.status.value})


def asked_of(body: JsonMap) -> JsonDict:
    """Arguments of ``api.design``, checked as far as possible before the search. Raises ``InputError``."""
    models = [model_of(body), *(plain_name("also", name) for name in body["also"] or ())]
    seconds = body["time_limit"]
    if not 1 <= seconds <= LONGEST_S:
        raise InputError("time_limit", seconds, f"must be from 1 to {LONGEST_S:g} seconds over HTTP", "120")
    trains = Phase.TRAIN in objective_of(body["objective"])[0]
    for name in ("num_devices", "global_batch_size") if trains else ("num_devices",):
        size_of(name, body[name] if body[name] is not None else "not given", 1)
    space, same = plain_name("space", body["space"]), {name: body[name] for name in SAME}
    return {"model": models, "space": space, "time_limit": seconds, "baselines": False, **same}
