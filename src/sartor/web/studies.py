"""Studies started over HTTP: one ``sartor design`` search at a time, each in a process with a study file.

The files are in a folder that is deleted when the server ends. A search ends when its standard input is closed, so that
it cannot outlive the server; it then keeps the best so far, as after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.web.guard import Reply, Settings, refused
from sartor.web.work import busy

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

    from sartor.web.work import Lane

MOST_KEPT = 16
"""Studies kept; the oldest goes first."""
LOOK_S = 0.2
"""How often to check whether a new search has written its question to its study."""
COMMAND = "import sys; from sartor.web.study_run import main; main(sys.argv[1:])"
READ = "import sys; from sartor.web.study_run import read; read(sys.argv[1:])"


@dataclass(slots=True, kw_only=True)
class _Started:
    """A study's file, its process, and that process's final output: a status, a newline, an answer."""

    path: Path
    process: Process
    said: asyncio.Task[bytes]

    @property
    def running(self) -> bool:
        return not self.said.done()

    @property
    def failure(self) -> Reply | None:
        """The reason why the search ended without an answer, if it did."""
        if self.running:
            return None
        reply = _reply_of(self.said.result())
        return None if reply.status == 200 else reply


def _reply_of(output: bytes) -> Reply:
    """A process's output as a reply: its status and answer; an error if it ran out of memory (no output)."""
    status, _, body = output.partition(b"\n")
    if not status:
        return refused(InputError("study", "as given", "needs more memory than a process may have; take a smaller one"))
    return Reply(status=int(status), body=body)


class Studies:
    """The server's studies by name. Requests are checked in the lane ``quick`` and studies read in ``lane``."""

    def __init__(self, quick: Lane, lane: Lane, settings: Settings) -> None:
        self.quick, self.lane, self.settings = quick, lane, settings
        self.folder: TemporaryDirectory[str] | None = None
        self.started: dict[str, _Started] = {}
        self.reading = asyncio.Semaphore(1)

    async def start(self, body: bytes) -> Reply | None:
        """Start a search; the reply is its study once the question is written to it, or the reason for rejecting it."""
        running = next((name for name, study in self.started.items() if study.running), None)
        if running is not None:
            must = f"of this server is still being searched; cancel it, or wait (GET /api/design/{running})"
            return refused(InputError("study", running, must))
        checked = await self.quick.do({"route": "design", "path": {}}, body, _never())
        if checked is None or checked.status != 200:
            return checked
        name, study = await self._begin(body)
        while study.running:
            await asyncio.sleep(LOOK_S)
            reply = await self._read(name, study) if study.path.exists() else None
            if reply is not None and reply.status == 200:
                return reply
        if study.failure:
            del self.started[name]
        return study.failure or await self._read(name, study)

    async def _begin(self, body: bytes) -> tuple[str, _Started]:
        import secrets
        from tempfile import TemporaryDirectory

        self.folder = self.folder or TemporaryDirectory(prefix="sartor-studies-")
        name = secrets.token_urlsafe(9)
        path = Path(self.folder.name) / f"{name}.db"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", COMMAND, str(path), str(self.settings.study_bytes), stdin=PIPE, stdout=PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"%d\n%b" % (len(body), body))
        study = _Started(path=path, process=process, said=asyncio.create_task(process.stdout.read()))
        self.started[name] = study
        while len(self.started) > MOST_KEPT:
            self.started.pop(next(iter(self.started))).path.unlink(missing_ok=True)
        return name, study

    async def state(self, name: str) -> Reply | None:
        """The current state of a study."""
        study = self.named(name)
        if isinstance(study, Reply):
            return study
        return study.failure or await self._read(name, study)

    async def stop(self, name: str) -> Reply | None:
        """Stop a search, keeping the best so far; the reply is its study."""
        study = self.named(name)
        if isinstance(study, Reply):
            return study
        self.end(study)
        await asyncio.wait([study.said], timeout=self.settings.quick_s)
        return await self.state(name)

    async def file(self, name: str) -> Reply | None:
        """The study's file, once its search has ended."""
        study = self.named(name)
        if isinstance(study, Reply):
            return study
        if study.running:
            return refused(InputError("study", name, "is still being searched; its file is complete when it has ended"))
        return study.failure or Reply(body=study.path.read_bytes(), media="application/vnd.sqlite3")

    async def read(self, name: str, field: str, path: Path) -> Reply:
        """Read a large study for a route, in a separate process, one at a time."""
        if self.reading.locked():
            return busy()
        async with self.reading:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", READ, name, field, str(path), str(self.settings.study_bytes), stdout=PIPE
            )
            assert process.stdout is not None
            try:
                return _reply_of(await asyncio.wait_for(process.stdout.read(), self.settings.slow_s))
            except TimeoutError:
                return refused(InputError("study", "as given", f"takes longer to read than {self.settings.slow_s:g} s"))
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()

    def named(self, name: str) -> _Started | Reply:
        """A study by name, or an error if there is none of that name."""
        if name in self.started:
            return self.started[name]
        must = "is not a study of this server, which keeps the last 16 until it ends; start the search again"
        return refused(InputError("study", name[:40], must))

    async def _read(self, name: str, study: _Started) -> Reply | None:
        path: JsonDict = {"study": str(study.path), "id": name}
        return await self.lane.do({"route": "watched", "path": path}, b"", _never())

    def end(self, study: _Started) -> None:
        """Ask a search to stop, by closing its standard input."""
        if study.running and study.process.stdin is not None:
            study.process.stdin.close()

    async def close(self) -> None:
        """Kill running searches and remove the files."""
        for study in self.started.values():
            if study.running:
                study.process.kill()
        if self.folder is not None:
            self.folder.cleanup()


async def _never() -> None:
    """A client that never disconnects, for reads that are short."""
    await asyncio.Event().wait()
