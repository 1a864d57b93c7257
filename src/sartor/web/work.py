"""A worker: one process of anyio's pool, which answers one question at a time.

A separate process, because a search cannot be stopped from outside otherwise: one that takes too long is killed and
replaced, and memory is limited.
"""

from __future__ import annotations

import json
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sartor import interrupts
from sartor.errors import InputError, InternalError
from sartor.json_types import JsonMap
from sartor.web.reply import Reply, refused

REMEMBERED = 64
"""Cache of quick answers by request, so that undo, redo and dragging back cost nothing."""
LARGEST_KEPT = 400_000
"""Largest answer that is kept [bytes]."""
FRESH = ("study", "watched")
"""Answered from a file, which may change: not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """Most memory of a worker [bytes] (0: as much as there is), and the study named on the command line."""

    memory_bytes: int = 0
    study: str | None = None


def answer(limits: WorkerLimits, header: JsonMap, body: bytes) -> Reply:
    """One answer, by the process that this is called in."""
    return _begin(limits)(header, body)


def ready(limits: WorkerLimits) -> None:
    """Load in this process what the first request would wait for."""
    _begin(limits)


@cache
def _begin(limits: WorkerLimits) -> Answerer:
    """Make this process a worker: the server ends it, not Ctrl-C; what goes wrong is still printed (anyio's workers
    are silent)."""
    interrupts.deaf()
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1)
    limit_memory(limits.memory_bytes)
    warm_up()
    return Answerer(limits.study)


def warm_up() -> None:
    """Load what the first request would wait for: what the page asks when it is opened."""
    import sartor.shapes.search  # noqa: F401

    opened = Answerer()
    opened.fresh("shape", {}, b'{"model": "llama-3.1-8b", "gpu": "h100_sxm"}')
    for shelf in ("models", "gpus", "accelerators"):
        opened.fresh("catalog", {"what": shelf}, b"")


class Answerer:
    """Answers by route, with a cache. ``study`` is the file named on the command line."""

    def __init__(self, study: str | None = None) -> None:
        self.study = study
        self.kept: OrderedDict[tuple[str, bytes], Reply] = OrderedDict()

    def __call__(self, header: JsonMap, body: bytes) -> Reply:
        key = (json.dumps([header["route"], header.get("path", {})]), body)
        if key in self.kept:
            self.kept.move_to_end(key)
            return self.kept[key]
        reply = self.fresh(header["route"], header.get("path", {}), body)
        small = len(reply.body) <= LARGEST_KEPT and len(body) <= LARGEST_KEPT
        if reply.status == 200 and small and header["route"] not in FRESH:
            self.kept[key] = reply
            while len(self.kept) > REMEMBERED:
                self.kept.popitem(last=False)
        return reply

    def fresh(self, name: str, path: Mapping[str, str], body: bytes) -> Reply:
        """One answer; any failure becomes an error message."""
        try:
            return self._answer(name, path, body)
        except InputError as error:
            return refused(error)
        except MemoryError:
            return refused(
                InputError("request", "as given", "needs more memory than a worker has; send a smaller request")
            )
        except OverflowError:
            return refused(InputError("request", "as given", "has sizes that are too large (2^63)"))
        except RecursionError:
            return refused(InputError("request", "as given", "is nested too deeply"))
        except Exception as slip:
            import traceback

            traceback.print_exc()
            sentence = " ".join(str(slip).split())[:200]
            why = f"internal error (please report): {type(slip).__name__}: {sentence}"
            return refused(InternalError("sartor", why), status=500)

    def _answer(self, name: str, path: Mapping[str, str], body: bytes) -> Reply:
        from sartor.web import answers, study_view
        from sartor.web.asked import body_of
        from sartor.web.fields import checked
        from sartor.web.reply import answered, compact
        from sartor.web.routes import route_named
        from sartor.web.uploads import calibration_at_hand

        route = route_named(name)
        if name == "study":
            return answered("study", study_view.uploaded_body(Path(path["file"])))
        if name == "watched":
            own = {"id": path["id"]} if "id" in path else {}
            return answered("study", {**own, **study_view.watched_body(path.get("study", self.study))})
        if name == "design":
            from sartor.web.study_run import asked_of, searched

            wanted = checked(route.fields, body_of(body))
            if path:
                return searched(wanted, path["study"])
            return compact("design", {"models": len(asked_of(wanted)["model"])})
        handler: Callable[[JsonMap], Reply] = getattr(answers, name)
        if route.method == "GET":
            return handler(path)
        with calibration_at_hand(checked(route.fields, body_of(body))) as asked:
            return handler(asked)


def limit_memory(size: int) -> None:
    """Limit what this process may allocate beyond what it has (data, Linux only)."""
    if not size:
        return
    try:
        import resource
        from pathlib import Path

        import numpy as np

        square = np.ones((300, 300))
        square @ square  # OpenBLAS takes its buffer now: without memory for it, it tries for ever or ends the process
        held = (
            int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        )  # the libraries, and a buffer per core
        resource.setrlimit(resource.RLIMIT_DATA, (held + size, held + size))
    except (ImportError, ValueError, OSError):
        print("sartor: this system does not limit a worker's memory", file=sys.stderr)
