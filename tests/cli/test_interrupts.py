"""Ctrl-C at any moment: exit 130, one word, and what is finished is printed whole. No test here looks at a clock: the
program itself says where it is, or presses Ctrl-C at a given one of its own function calls."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is another thing elsewhere")
REPO = Path(__file__).parents[2]
WHILE_LOADING = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Press(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

wanted = sys.argv.pop(1)
sys.meta_path.insert(0, Press())
from sartor.__main__ import main
main()
"""
AT_A_CALL = """
import os, signal, sys

left = int(sys.argv.pop(1))
def count(frame, event, argument):
    global left
    left -= event == "call"
    if left == 0:
        os.kill(os.getpid(), signal.SIGINT)

from sartor.__main__ import main
sys.setprofile(count)
main()
"""
IN_THE_SEARCH = """
import sys
from sartor.schedules import cp_sat

solve = cp_sat._run
def told(solver, model):
    print("searching", file=sys.stderr, flush=True)
    return solve(solver, model)

cp_sat._run = told
from sartor.__main__ import main
main()
"""
WHILE_CLEARED_AWAY = """
import os, signal, time
from sartor import interrupts

def generator():
    try:
        yield
    finally:
        os.kill(os.getpid(), signal.SIGINT)

interrupts.listen()
held = generator()
next(held)
try:
    del held
    time.sleep(60)
except KeyboardInterrupt:
    print("raised")
"""
GEMM = ["gemm", "512", "512", "512", "--gpu", "a100"]


def ran(code: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPO)


@pytest.mark.parametrize(
    "library", ["sartor.cli", "typer", "sartor.cli.predict", "numpy", "numpy.linalg", "json.encoder"]
)
def test_while_a_library_loads(library: str) -> None:
    done = ran(WHILE_LOADING, library, *GEMM, "--json")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_while_an_object_is_cleared_away() -> None:
    """Python drops what is raised there, and prints a traceback: here nothing is printed, and the interrupt is kept."""
    done = ran(WHILE_CLEARED_AWAY)
    assert (done.stdout, done.stderr) == ("raised\n", "")


def test_one_that_is_not_to_be_interrupted_is_not() -> None:
    command = ["bash", "-c", 'trap "" INT; "$@"', "bash", sys.executable, "-c", WHILE_LOADING, "numpy", *GEMM]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0


DESIGN = ["design", "--model", "pythia-70m", "--num-devices", "4", "--global-batch-size", "32", "--space",
          "examples/space-tiny.toml"]  # fmt: skip
COMMANDS = [
    GEMM,
    ["estimate", "pythia-70m", "--gpu", "a100"],
    ["advise", "pythia-70m", "--gpu", "a100"],
    ["plan", "pythia-70m", "--cluster", "dgx-a100", "--num-devices", "8", "--global-batch-size", "32"],
    ["schedule", "examples/schedule/decoder_backward.json", "--time-limit", "5"],
]


@pytest.mark.slow
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_at_any_moment(words: list[str], tmp_path: Path) -> None:
    draw = random.Random(words[0])
    moments = [int(10 ** draw.uniform(2, 6.5)) for _ in range(6)]
    for moment in moments:
        done = ran(AT_A_CALL, moment, *words, "--json", "--out", tmp_path / "out.json")
        assert done.returncode in (130, 0), (moment, done.stderr)
        assert done.returncode == 130 or done.stdout, "0 is for a command that had its answer before"
        assert "Traceback" not in done.stderr, (moment, done.stderr)
        assert not done.stdout or json.loads(done.stdout)["schema"]
        assert {path.name for path in tmp_path.iterdir()} <= {"out.json"}
        assert not (tmp_path / "out.json").exists() or json.loads((tmp_path / "out.json").read_text())["schema"]


@pytest.mark.parametrize(("search", "size"), [("cp_sat._run", 70), ("prefixes._Search.run", 60)])
def test_in_the_search_of_schedule_the_best_so_far_is_printed(search: str, size: int, tmp_path: Path) -> None:
    ops = [{"id": k, "type": "TC" if k % 2 else "VC", "latency": 97 + 53 * k % 89, "intra_latency": 31 + 17 * k % 29}
           for k in range(size)]  # fmt: skip
    edges = [[k, k + 9] for k in range(size - 9)]
    path = tmp_path / "large.json"
    path.write_text(json.dumps({"num_tc": 4, "num_vc": 4, "ops": ops, "edges": edges}))
    code = IN_THE_SEARCH.replace("cp_sat._run", search).replace("import cp_sat", f"import {search.split('.')[0]}")
    words = [sys.executable, "-c", code, "schedule", str(path), "--json", "--time-limit", "300"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert running.stderr.readline() == "searching\n"
        running.send_signal(signal.SIGINT)
        out, err = running.communicate()
    assert (running.returncode, set(err.splitlines()) - {"searching"}) == (130, set())
    body = json.loads(out)
    assert (body["interrupted"], body["checked"], body["status"]) == (True, True, "feasible")


def test_before_the_search_of_schedule_list_scheduling_is_printed(tmp_path: Path) -> None:
    code = IN_THE_SEARCH.replace("cp_sat.", "bounds.").replace("import cp_sat", "import bounds")
    code = code.replace("_run", "best_greedy").replace("(solver, model)", "(block)")
    code = code.replace('print("searching", file=sys.stderr, flush=True)', "import os; os.kill(os.getpid(), 2)")
    done = ran(code, "schedule", "examples/schedule/decoder_backward.json", "--json")
    assert done.returncode == 130, done.stderr
    assert json.loads(done.stdout)["checked"]


def test_the_second_press_is_not_waited_for() -> None:
    code = "import os; from sartor.interrupts import *; listen()\nwith patient():\n os.kill(os.getpid(), 2)\n"
    code += " print(asked(), flush=True)\n os.kill(os.getpid(), 2)\n print('not here')"
    done = ran(code)
    assert done.stdout == "True\n"
    assert "KeyboardInterrupt" in done.stderr


def test_an_error_comes_out_of_another_process_as_it_went_in() -> None:
    import pickle

    from sartor.errors import InputError, MissingExtraError, UsageError

    for error in (InputError("tp", 3, "must divide 32", "4"), UsageError("x", "no such"), MissingExtraError("a", "b")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.to_dict()) == (type(error), str(error), error.to_dict())
