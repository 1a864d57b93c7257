"""The picture in docs/architecture.md as a test: imports go down only, rooms on one floor don't know each other."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "sartor"
LAB = SOURCE.parents[1] / "lab"

FLOORS = {
    "ground": {
        "units",
        "errors",
        "options",
        "version",
        "operators",
        "pareto",
        "json_types",
        "bounded",
        "files",
        "interrupts",
    },
    "describe": {"model", "hardware"},
    "ask": {"run"},
    "predict": {"cost"},
    "solve a block": {"schedules"},
    "predict a job": {"step"},
    "solve": {"placement"},
    "decide": {"rules", "shapes", "plans"},
    "decide jointly": {"designs"},
    "answer": {"answers"},
    "complete": {"ask"},
}
CORE = [room for rooms in FLOORS.values() for room in rooms]
EDGE = {
    "read": set(),
    "launch": {"read"},
    "records": set(),
    "traces": set(),
    "calibrate": {"records"},
    "bench": {"records", "calibrate"},
    "validate": {"records"},
    "engine": set(),
    "report": set(),
}
"""Each edge and the edges it may lean on: a launch file names a model, tables of measurements have one reader."""
ORDER = list(FLOORS)


def floor_of(room: str) -> str:
    return next(name for name, rooms in FLOORS.items() if room in rooms)


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def sartor_imports(path: Path) -> set[str]:
    """Rooms of sartor that a module imports, anywhere in it; names taken from the package itself count as ``""``."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "sartor":
            parts = (node.module or "").split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            rooms |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("sartor.")}
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative imports hide the floor"
    return rooms


def may_import(room: str) -> set[str]:
    if room in CORE:
        floor = floor_of(room)
        below = {r for f in ORDER[: ORDER.index(floor)] for r in FLOORS[f]}
        ground = FLOORS["ground"] if floor == "ground" else set()
        return (below | ground | {"__version__"}) - {"files"} | {room}  # files are the edges' to write
    if room in EDGE:
        return {*CORE, *EDGE[room], room, "__version__"}
    if room == "api":
        # The journeys start at a file that a user names (read, launch, traces, and rows of shapes: records, priced by
        # the readers that validate has); a long one runs on workers (engine).
        return {*CORE, "api", "read", "launch", "traces", "records", "validate", "engine", "__version__"}
    doors = {"web"} if room == "web" else {"cli", "web"}  # the server knows no command line
    return {*CORE, *EDGE, *doors, "api", "__version__"}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_down_only(path: Path) -> None:
    room = room_of(path)
    forbidden = sartor_imports(path) - may_import(room)
    assert not forbidden, f"{path.relative_to(SOURCE)} ({room}) may not import {sorted(forbidden)}"


def test_the_core_neither_prints_nor_exits() -> None:
    for room in CORE:
        for path in [*(SOURCE / room).rglob("*.py"), *SOURCE.glob(f"{room}.py")]:
            calls = [n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            names = {f.id for f in calls if isinstance(f, ast.Name)}
            assert not names & {"print", "exit", "input"}, f"{path} talks to the user"


@pytest.mark.parametrize("statement", ["import sartor", "from sartor.api import *"])
def test_importing_the_library_loads_numpy_and_nothing_heavier(statement: str) -> None:
    heavy = "typer rich pydantic altair pyarrow pandas torch ortools scipy vl_convert"
    heavy += " optuna distributed starlette transformers"
    code = f"import sys; {statement}; print([m for m in '{heavy}'.split() if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


@pytest.mark.parametrize("question", ["gemm", "estimate", "plan"])
def test_a_question_about_a_gpu_loads_no_room_that_designs_chips(question: str) -> None:
    code = f"import sys; from sartor.api import {question}; print([m for m in sys.modules if '.designs' in m])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"


READS = """
import collections, sys
read = collections.Counter()
sys.addaudithook(lambda event, words: read.update([str(words[0])]) if event == "open" else None)
from sartor import api
api.estimate("llama-3.1-8b", "h100")
read = {path: count for path, count in read.items() if "sartor" in path and path.endswith((".toml", ".json", ".npz"))}
print(len(read), sum(read.values()))
"""


def test_a_question_reads_the_files_of_the_package_once() -> None:
    shown = subprocess.run([sys.executable, "-c", READS], capture_output=True, text=True, check=True).stdout
    files, reads = map(int, shown.split())
    # The device and its cluster are found by a look into the catalogue, then read and checked like a user's own file.
    assert files > 0
    assert reads <= files + 2


def test_make_lab_knows_every_script_of_the_lab() -> None:
    lab = run_path(str(LAB / "run.py"))
    found = {path.stem for path in LAB.glob("*.py")}
    assert found == {*lab["SCRIPTS"], *lab["IMPORTED"], "run"}
