"""Additions to the package: what holds for each, of whatever kind.

Subclass `Addition` for a kind of thing that people add. The life cycle of its tests:

1. ``files`` are the files that a contributor writes, ``edits`` the lines put into existing ones (CONTRIBUTING.md). They
   are done once for the class, on a copy of the package (`package`).
2. `test_it_touches_no_other_source_file` compares the copy with the package: ``source_files`` is the promise of
   CONTRIBUTING.md.
3. ``question`` is asked of the copy in a process of its own, as text, JSON, page and (of a plan) timeline; a subclass
   says in ``in_text``, ``in_json`` and ``in_page`` what each must say, and adds tests of its own kind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any, ClassVar

import pytest


class Addition:
    """What holds for everything that is added."""

    files: ClassVar[Mapping[str, str]] = {}
    """Text of new files, by path below ``sartor``."""
    edits: ClassVar[Mapping[str, tuple[tuple[str, str], ...]]] = {}
    """Lines of existing files (each stands there once), and what replaces them."""
    source_files: ClassVar[int] = 1
    question: ClassVar[str]
    """Words of the command line; ``{folder}`` is a folder with the files of ``beside``."""
    beside: ClassVar[Mapping[str, str]] = {}
    """Files of the user: a config, a space."""
    codes: ClassVar[tuple[int, ...]] = (0,)
    in_text: ClassVar[str]
    in_json: ClassVar[tuple[Any, ...]] = ()
    """A path of keys, and the value there."""
    in_page: ClassVar[str] = ""
    """Empty: the command has no page."""
    in_trace: ClassVar[str] = ""
    """Name of an event of ``--trace``; empty: the command has none."""

    @pytest.fixture(scope="class")
    @classmethod
    def package(cls, tmp_path_factory: pytest.TempPathFactory, repo_dir: Path) -> Path:
        source = tmp_path_factory.mktemp("src")
        copytree(repo_dir / "src" / "sartor", source / "sartor", ignore=ignore_patterns("__pycache__"))
        for name, text in cls.files.items():
            path = source / "sartor" / name
            assert not path.exists()
            path.write_text(text.lstrip(), encoding="utf-8")
        for name, changes in cls.edits.items():
            path = source / "sartor" / name
            text = path.read_text(encoding="utf-8")
            for before, after in changes:
                assert text.count(before) == 1, before
                text = text.replace(before, after)
            path.write_text(text, encoding="utf-8")
        for name, text in cls.beside.items():
            (source / name).write_text(text, encoding="utf-8")
        return source

    def ask(self, package: Path, *words: str) -> str:
        """What the copy prints."""
        environment = {**os.environ, "PYTHONPATH": str(package), "SARTOR_DEBUG": "1", "COLUMNS": "150"}
        question = [word.format(folder=package) for word in self.question.split()]
        command = [sys.executable, "-m", "sartor", *question, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode in self.codes, done.stderr
        return done.stdout

    def test_it_touches_no_other_source_file(self, package: Path, repo_dir: Path) -> None:
        now, before = package / "sartor", repo_dir / "src" / "sartor"
        paths = {path.relative_to(now) for path in now.rglob("*") if path.is_file() and path.suffix != ".pyc"}
        touched = [p for p in paths if not (before / p).exists() or (now / p).read_bytes() != (before / p).read_bytes()]
        assert len(touched) == self.source_files, touched

    def test_the_text_says_it(self, package: Path) -> None:
        assert self.in_text in " ".join(self.ask(package).split())

    def test_json_page_and_timeline_say_it(self, package: Path, tmp_path: Path) -> None:
        page, trace = tmp_path / "page.html", tmp_path / "step.json"
        words = ["--html", str(page)] if self.in_page else []
        words += ["--trace", str(trace)] if self.in_trace else []
        if self.in_page:
            pytest.importorskip("altair", reason="the extra report is not installed")
        value = json.loads(self.ask(package, "--json", *words))
        self.check_json(value)
        *keys, wanted = self.in_json
        for key in keys:
            value = value[key]
        assert value == wanted
        if self.in_page:
            assert self.in_page in page.read_text(encoding="utf-8")
        if self.in_trace:
            events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
            assert self.in_trace in {event["name"] for event in events}

    def check_json(self, body: dict[str, Any]) -> None:
        """What else must hold of the answer."""
