"""A server of one's own, on a free port, for the tests of the page and of HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra web is not installed")
pytest.importorskip("uvicorn", reason="the extra web is not installed")
httpx = pytest.importorskip("httpx", reason="httpx is not installed")


@dataclass(frozen=True)
class Served:
    """A running ``sartor page``: where it is, its process, and what it said."""

    url: str
    pid: int
    said: str

    def post(self, path: str, body: Any, **words: Any) -> Any:
        return httpx.post(f"{self.url}{path}", json=body, timeout=120, **words)

    def get(self, path: str, **words: Any) -> Any:
        return httpx.get(f"{self.url}{path}", timeout=30, **words)


@contextlib.contextmanager
def serving(*words: str) -> Iterator[Served]:
    """``sartor page --port 0 WORDS`` until the block ends; it must end by itself on an interrupt."""
    environment = {**os.environ, "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-c", "from sartor.cli import main; main()", "page", "--port", "0", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    said = ""
    try:
        assert process.stderr is not None
        while "open http" not in said:
            line = process.stderr.readline()
            assert line, f"the server ended with {process.wait()}: {said}"
            said += line
        address = re.search(r"open (http://\S+)", said)
        assert address
        yield Served(address[1].split("?")[0].rstrip("/"), process.pid, said)
    finally:
        process.terminate()
        process.wait(timeout=10)
        if process.stderr is not None:
            process.stderr.close()


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    """A server whose time limits leave room on a busy machine; limits are tested with small ones (`start_with`)."""
    with configured(quick_s=120.0, slow_s=600.0) as found:
        yield found


@pytest.fixture
def start() -> Iterator[Callable[..., Served]]:
    """Start further servers with words of their own."""
    with contextlib.ExitStack() as stack:
        yield lambda *words: stack.enter_context(serving(*words))


@pytest.fixture(scope="session")
def pythia(repo_dir: Path) -> dict[str, Any]:
    """A real config.json."""
    found: dict[str, Any] = json.loads((repo_dir / "examples" / "pythia-2.8b" / "config.json").read_text())
    return found


@contextlib.contextmanager
def configured(**settings: Any) -> Iterator[Served]:
    """A server with limits that the command line does not offer, as small as a test wants them."""
    code = (
        "import sys; from dataclasses import replace; from sartor.web.server import *\n"
        f"settings = Settings(port=0, **{settings!r})\n"
        "sock = listen(settings); settings = replace(settings, port=sock.getsockname()[1])\n"
        "serve(settings, sock, lambda: print(f'open {address_of(settings, sock)}', file=sys.stderr, flush=True))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        address = re.search(r"open (http://\S+)", line)
        assert address, line + process.stderr.read()
        yield Served(address[1].split("?")[0].rstrip("/"), process.pid, line)
    finally:
        process.terminate()
        process.wait(timeout=10)
        if process.stderr is not None:
            process.stderr.close()


@pytest.fixture
def start_with() -> Iterator[Callable[..., Served]]:
    """Start a server with settings of its own: ``start_with(slow_s=0.2)``."""
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(configured(**settings))
