"""Every command at the largest input that it should answer: processor seconds and memory against 20 s and 2 GB.

    python benchmarks/bench_bounds.py [--only WORD] [FOLDER]

Models of 1,000 layers, 100,000 devices, tables of a million rows, a trace of 1 GB, a study of 64 MiB: the inputs are
made in FOLDER (or in a temporary one; 3 GB). Seconds are those of the processor, of the command and all its processes,
so that a busy machine changes little; what takes longer than a command may says how far it is and how long it will
take. Exit code 1 if one is beyond a bound, or ends with a code outside the contract.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sartor.engine.schema import connect

REPO = Path(__file__).resolve().parents[1]
LIMIT_S, LIMIT_BYTES = 20.0, 2e9
ROWS = 1_000_000
TRACE_BYTES, STUDY_BYTES = 1_000_000_000, 64 * 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--only", default="", help="commands that hold this word")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{'cpu s':>7} {'wall s':>7} {'MB':>6} {'exit':>4}  command")
        beyond = [one for one in COMMANDS if arguments.only in one and not _within(one, folder)]
    print("\n".join(["beyond a bound:", *beyond]) if beyond else "every command is within its bounds")
    return bool(beyond)


def _within(command: str, folder: Path) -> bool:
    for name, make in INPUTS.items():
        if name in command and not (folder / name).exists():
            make(folder / name)
    words = [sys.executable, "-m", "sartor", *shlex.split(command)]
    start = time.monotonic()
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr
        said = process.stderr.read().decode().strip()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s, size = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    wall_s = time.monotonic() - start
    print(f"{cpu_s:7.1f} {wall_s:7.1f} {size / 1e6:6.0f} {process.returncode:4d}  {command}", flush=True)
    if process.returncode == 2:
        print(f"{'':29}{said[:300]}")
    return cpu_s <= LIMIT_S and size <= LIMIT_BYTES and process.returncode in {0, 1, 2, 3}


# ------------------------------------------------------------------------------------------------------- the inputs


def _deep(example: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        config = json.loads((REPO / "examples" / example / "config.json").read_text())
        path.write_text(json.dumps({**config, "num_hidden_layers": 1000}))

    return make


def _rows(head: str, row: Callable[[int], str], rows: int = ROWS) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with path.open("w") as file:
            file.write(head + "\n")
            file.writelines(row(i) + "\n" for i in range(rows))

    return make


def _trace(path: Path) -> None:
    """The sample trace, its events again and again, later each time."""
    import gzip

    document = json.loads(gzip.decompress((REPO / "examples/gpt2/trace.json.gz").read_bytes()))
    events = document["traceEvents"]
    timed = [event for event in events if event.get("ph") == "X"]
    span = max(e["ts"] + e["dur"] for e in timed) - min(e["ts"] for e in timed)
    with path.open("w") as file:
        file.write(json.dumps({**document, "traceEvents": []})[:-1].replace('"traceEvents": []', '"traceEvents": ['))
        written, turn = file.tell(), 0
        while written < TRACE_BYTES:
            for event in events if not turn else timed:
                moved = {**event, "ts": event["ts"] + turn * (span + 1000)} if "ts" in event else event
                if turn and str(moved.get("name", "")).startswith("ProfilerStep#"):
                    moved["name"] = f"ProfilerStep#{int(moved['name'].split('#')[1]) + 10 * turn}"
                if turn and "correlation" in moved.get("args", {}):
                    moved["args"] = {**moved["args"], "correlation": moved["args"]["correlation"] + 10**6 * turn}
                written += file.write((",\n" if written > 1000 and event is not events[0] else "") + json.dumps(moved))
            turn += 1
        file.write("]}")


def _study(path: Path) -> None:
    """A finished study with rows of sessions and results added until it is as large as a study may be."""
    space = path.with_suffix(".toml")
    space.write_text(
        "num_tensor_cores = [1, 2]\nnum_vector_cores = [1, 2]\narray_rows = [64, 128]\narray_cols = 128\n"
        "global_buffer_mib = [8]\n"
    )
    words = "design --model gpt2 --num-devices 2 --global-batch-size 2 --seq-len 64 --no-baselines"
    command = [sys.executable, "-m", "sartor", *words.split(), "--space", str(space), "--study", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with closing(connect(path, for_reading=False)) as database:
        names = [row[1] for row in database.execute("PRAGMA table_info(points)")]
        columns = ",".join(name for name in names if name not in {"id", "row_sum", "candidate"})
        database.execute("BEGIN")
        first, size = database.execute(
            "SELECT max(candidate) + 1, avg(length(outcomes || bounds || schedules || architecture)) FROM points"
        ).fetchone()
        for turn in range(int(STUDY_BYTES / (1.1 * size))):
            copied = f"SELECT {columns}, {int(first) + turn} FROM points ORDER BY id LIMIT 1"
            database.execute(f"INSERT INTO points ({columns}, candidate) {copied}")
        database.execute("COMMIT")


def _log(path: Path) -> None:
    with path.open("w") as file:
        for i in range(1, ROWS + 1):
            file.write(
                f"[titan] 2026-01-01 00:00:00,000 - root - INFO - step: {i}  loss:  {2 + 1000 / (i + 500):.4f}  "
                f"memory: 40.00GiB(50.00%)  tps: {7000 + i % 97:,}  tflops: 350.00  mfu: 35.40%\n"
            )


INPUTS: dict[str, Callable[[Path], None]] = {
    "deep.json": _deep("llama-3-8b"),
    "experts.json": _deep("deepseek-v3"),
    "shapes.csv": _rows("table,dtype,m,n,k", lambda i: f"gemm,bf16,{1 + i % 9973},{64 + i % 8191},{64 + i % 4093}"),
    "gemms.csv": _rows(
        "gpu,dtype,m,n,k,latency_us",
        lambda i: f"h100_sxm,bf16,{1 + i % 9973},{64 + i % 8191},{64 + i % 4093},{20 + i % 887}.5",
    ),
    "traffic.csv": _rows("time,in,out", lambda i: f"{i * 0.05:.2f},{100 + i % 1900},{50 + i % 450}"),
    "run.log": _log,
    "trace.json": _trace,
    "study.db": _study,
}
COMMANDS = (
    *(
        f"{command} {model} --gpu h100"
        for model in ("deep.json", "experts.json")
        for command in ("estimate", "lint", "advise", "serving", "deploy")
    ),
    *(f"estimate {model} --gpu h100 --phase decode --tp 8" for model in ("deep.json", "experts.json")),
    *(
        f"plan {model} --cluster dgx-h100 --num-devices {devices} --global-batch-size 100000 --seq-len 4096"
        for model in ("deep.json", "experts.json", "llama-3.1-70b")
        for devices in (1024, 100_000)
    ),
    *(
        f"{command} {model} --gpu h100 --num-devices 100000 --global-batch-size 100000"
        for model in ("deep.json", "llama-3.1-70b")
        for command in ("estimate", "lint", "advise")
    ),
    "collective all_reduce 64e6 100000 --cluster dgx-h100",
    "deploy llama-3.1-70b --gpu h100 --users 1000000 --input-len 1000 --output-len 300",
    "deploy llama-3.1-70b --gpu h100 --traffic traffic.csv",
    "design --model deep.json --num-devices 1024 --global-batch-size 1024 --time-limit 10",
    "design --model gpt3-175b --num-devices 100000 --global-batch-size 100000 --time-limit 10",
    "operators shapes.csv --gpu h100",
    "validate operators --data gemms.csv",
    "calibrate gemms.csv --gpu h100_sxm --out fitted.toml",
    "diagnose run.log --model llama-3.1-8b --gpu h100 --num-devices 8 --global-batch-size 64 --seq-len 4096",
    "compare run.log run.log",
    "diagnose trace.json",
    "compare trace.json trace.json",
    "study study.db",
)

if __name__ == "__main__":
    sys.exit(main())
