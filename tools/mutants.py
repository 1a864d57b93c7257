"""Change one operator of a checker, a price or a threshold at a time, and run the tests that should notice.

``python tools/mutants.py`` tries every mutant of `ROOMS` and lists the survivors; ``--only WORD`` those whose file or
line holds the word, ``--every N`` one in N of each room (another start with ``--from``). Exit code 1 if one survives
that is not in `EQUIVALENT`.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
SWAPS = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Add: ("+", "-"), ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.Mod: ("%", "//"),
}  # fmt: skip
"""What stands for an operator in its mutant: of a comparison its neighbour, of a term its opposite."""


@dataclass(frozen=True)
class Room:
    """Functions of a module (methods by their name alone), and the tests that should notice."""

    file: str
    functions: str
    tests: str


STEP = "tests/step/test_price_terms.py"
COST = "tests/cost/test_price_terms.py tests/cost/test_{}.py"
ROOMS = (
    Room("schedules/problem.py", "violations _each_once _durations _order _alone _cores _shared",
         "tests/schedules/test_check.py tests/schedules/test_problem.py"),
    Room("placement/check.py", "price _structure_faults _load _transfers _run _memory",
         "tests/placement/test_check.py"),
    Room("placement/check.py", "price_with_terms group start tier_between load _arrivals ranks agreement _agree memory "
         "faults _holding",
         "tests/placement/test_check.py"),
    Room("step/mechanisms/gradient_reduction.py", "_at_step _on_ranks _last_s _earlier_s _replica_limits",
         STEP),
    Room("step/mechanisms/optimizer.py", "seconds optimizer_line _in_host_s_per_param _bytes_per_param _at_step "
         "_newton_schulz_s _zero_limits _offload_limits", STEP),
    Room("step/mechanisms/offload.py", "_at_stage offload_seconds _pipeline_limits",
         STEP),
    Room("step/mechanisms/pipeline_bubble.py", "_stage_limits _chunk_limits _ends_alone _batch_limits",
         STEP),
    Room("cost/collective/collective.py", "network_time_s _members seconds _tier _innermost _between _core _crossing "
         "_forwarded _capacity _launch _of_engine _direct", COST.format("network")),
    Room("cost/collective/links.py", "", COST.format("network")),
    Room("cost/gpu/memory_bound.py", "", COST.format("stream_law") + " tests/cost/test_kernels.py"),
    Room("cost/gpu/grouped.py", "", COST.format("gemm_terms") + " tests/cost/test_grouped.py"),
    Room("cost/gpu/gemm.py", "", COST.format("gemm_terms") + " tests/cost/test_laws.py"),
    Room("cost/gpu/tiles.py", "", "tests/cost/test_gemm_terms.py tests/cost/test_stream_k.py tests/cost/test_laws.py"),
    Room("cost/gpu/attention.py", "", "tests/cost/test_attention_terms.py"),
    Room("cost/gpu/eager.py", "", "tests/cost/test_eager_terms.py"),
    Room("cost/chip/systolic.py", "", COST.format("systolic")),
    Room("cost/chip/vector_core.py", "", COST.format("vector_core")),
    Room("plans/next.py", "divided_batches _near_batches", "tests/plans/test_batches.py"),
    Room("rules/lint.py", "_finding added_up", "tests/rules/test_price_of_a_finding.py tests/rules/test_rules.py"),
)  # fmt: skip
EQUIVALENT: dict[str, str] = {
    "if self.group(upstream) <= self.group(downstream):  # interleaved: from the last group back to the first":
        "two neighbours of one group: the pipeline has one group, which both ways look at",
    "moved = [[_moved(job, act, kind) - np.zeros(rows.size) for act in activations] for kind in Recompute]":
        "zeros that only spread a number over the rows",
    "repeated = np.flatnonzero(times >= 1)": "reductions before the last of one alone are 0 times their seconds",
    "beside = (s.work.forward_s[:, work_row] + s.work.rear_s[:, work_row]) * np.where(pp >= 1, pp, 1)":
        "a pipeline of one stage is a factor of 1 both ways",
    "if job.optimizer is Optimizer.MUON and (highest := trainer.most_zero_with_muon) <= 3:":
        "ZeRO 3 is the last: a limit that every plan meets",
    "for concurrent in CONCURRENT[: 1 + sum(c <= p.batch.max() for c in CONCURRENT[:-1])]:":
        "a chip shared by more GEMMs than the batch has is shared by all of the batch",
    "if not np.any(np.asarray(skew) >= 1):": "tiles of uneven groups are summed and not taken",
    "if largest < 1.0 or not op.visited_evenly:": "a skew of 1 has itself alone below it",
    "better = alternative + around <= network + overhead": "a way that takes as long may stand for the other",
    "return launch + (hop * self._slower(self.cluster.tiers[0]) if swap else 0.0) - np.zeros_like(self.n)":
        "zeros that only spread a number over the groups",
    "across = 0.0 / inner if self._forwards() else 1 - 1 / inner": "zeros in the form of the inner groups both ways",
    "return np.where(cols >= ROW_THREADS, np.ceil(cols / ROW_THREADS) * ROW_THREADS / np.maximum(cols, 1), 1.0)":
        "a row of as many columns as threads is one whole pass both ways",
    "log_sigma=plain(np.where(queued.time_s <= call_s, sigma, queued.log_sigma)),":
        "of a kernel and a call that take as long either interval may stand",
}  # fmt: skip
"""Mutants that no test can notice, with the reason."""


@dataclass(frozen=True)
class Mutant:
    room: Room
    line: int
    text: str
    source: str

    @property
    def words(self) -> str:
        return f"{self.room.file}:{self.line}: {self.text}"


def mutants(room: Room) -> Iterator[Mutant]:
    """Every mutant of a room, in the order of its file."""
    source = (REPO / "src" / "sartor" / room.file).read_text("utf-8")
    lines = source.encode().splitlines(keepends=True)
    names = room.functions.split()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef) and (not names or function.name in names):
            for left, operator, right in _operations(function):
                old, new = SWAPS[type(operator)]
                row, column = left.end_lineno or 0, left.end_col_offset or 0
                if row != right.lineno:
                    continue
                line = lines[row - 1]
                between = line[column : right.col_offset].decode()
                if between.count(old) == 1:
                    changed = line[:column] + between.replace(old, new).encode() + line[right.col_offset :]
                    whole = b"".join([*lines[: row - 1], changed, *lines[row:]]).decode()
                    yield Mutant(room, row, f"{line.decode().strip()}  ->  {changed.decode().strip()}", whole)


def _operations(function: ast.AST) -> Iterator[tuple[ast.expr, ast.AST, ast.expr]]:
    for node in ast.walk(function):
        if isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            if not any(isinstance(side, ast.JoinedStr) for side in (node.left, node.right)):
                yield node.left, node.op, node.right
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
            yield node.left, node.ops[0], node.comparators[0]


def survives(mutant: Mutant) -> bool:
    """Whether its tests pass on a copy of the package with the mutant in it."""
    with tempfile.TemporaryDirectory(prefix="sartor-mutant-") as folder:
        shutil.copytree(REPO / "src" / "sartor", Path(folder) / "sartor")
        (Path(folder) / "sartor" / mutant.room.file).write_text(mutant.source, "utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.room.tests.split()]
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": ""}
        try:
            return not subprocess.run(command, cwd=REPO, env=environment, capture_output=True, timeout=600).returncode
        except subprocess.TimeoutExpired:
            return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    compileall.compile_dir(REPO / "src", quiet=1)  # copies with their bytecode start five times as fast
    chosen = [m for room in ROOMS for m in list(mutants(room))[args.first :: args.every] if args.only in m.words]
    with ThreadPoolExecutor(args.jobs) as threads:
        alive = []
        for mutant, lives in zip(chosen, threads.map(survives, chosen), strict=True):
            known = EQUIVALENT.get(mutant.text.partition("  ->  ")[2])
            print(
                f"{'equivalent' if lives and known else 'SURVIVED' if lives else 'killed'} {mutant.words}", flush=True
            )
            alive += [mutant] if lives and not known else []
    print(f"{len(chosen)} mutants, {len(alive)} survived")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
