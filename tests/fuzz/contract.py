"""What every mutated file must be answered with, and the long run: ``make fuzz N=1000 SEED=7 [READERS=config,gpu]``.

A case is a reader, a seed and nothing else, so that a failure that is printed can be run again. Each reader works in a
process of its own, with bounded memory; a case that kills it is a failure, and the next process goes on after it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.mutate import mutated
from fuzz.readers import READERS, training
from sartor.cli import run

CODES = {0, 1, 2, 3}
LIMIT_S = 20.0
"""Most processor time of a case."""
LIMIT_BYTES = 2 * 1024**3
"""Most memory of the process that runs them."""


class Hang(BaseException):
    """A case took too long."""


def case(reader: str, seed: int) -> tuple[bytes, str]:
    """The mutated file of a seed, and the command line that reads it."""
    rng = random.Random(f"{reader}/{seed}")
    of = READERS[reader]
    if of.make is not None:
        data = of.make(rng)
        data = mutated(data, rng) if rng.random() < 0.1 else data
    else:
        samples = of.files()
        data = mutated(samples[seed % len(samples)], rng)
    return data, rng.choice(of.commands) + (" --json" if rng.random() < 0.7 else "")


def fault(reader: str, seed: int, folder: Path) -> str:
    """What is wrong with the answer to a case; empty where it keeps the contract."""
    data, command = case(reader, seed)
    return fault_of(data, command, folder, READERS[reader].suffix)


def fault_of(data: bytes, command: str, folder: Path, suffix: str) -> str:
    """What is wrong with a command's answer to a file; empty where it keeps the contract."""
    file, table = folder / f"mutated{suffix}", folder / "training.csv"
    file.write_bytes(data)
    table.write_bytes(training()[0])
    words = shlex.split(command.format(file=file, training=table))
    out, err = io.StringIO(), io.StringIO()
    before = signal.signal(signal.SIGPROF, _hang)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(record=True) as said,
        ):
            warnings.simplefilter("always")
            code = run(words)
    except Hang:
        return f"took more than {LIMIT_S:.0f} s of processor time"
    except BaseException as error:
        return f"raised {type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    said = [one for one in said if not issubclass(one.category, UserWarning)]  # which are sentences of our own
    return _outside(
        code, out.getvalue(), err.getvalue() + "".join(f"Warning: {one.message}" for one in said), "--json" in words
    )


def _outside(code: int, out: str, err: str, as_json: bool) -> str:
    """What is outside the contract in an exit code and two streams."""
    if code not in CODES:
        return f"exit {code}: {err.strip()[:300]}"
    if "Traceback" in err or "Warning" in err:
        return f"stderr: {err.strip()[-300:]}"
    if code == 2 and err.count("\n") != 1:
        return f"a refusal of {err.count(chr(10))} lines: {err[:300]}"
    if as_json:
        try:
            json.loads(out, parse_constant=_constant)
        except ValueError as error:
            return f"stdout is not one JSON object: {error}"
    return "" if "\x1b" not in out + err else "escape sequences reached the terminal"


def _constant(word: str) -> None:
    raise ValueError(f"it holds {word}")


def _hang(number: int, frame: FrameType | None) -> None:
    raise Hang


# ---------------------------------------------------------------------------------------------------- the long run


def main() -> int:
    """Run N cases of each reader from a seed on; print what is outside the contract and how to run it again."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--number", type=int, default=200)
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--readers", default=",".join(READERS))
    parse.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    asked = parse.parse_args()
    seeds = range(asked.seed, asked.seed + asked.number)
    if asked.worker:
        return _work(asked.readers, seeds)
    faults = sum(_watch(reader, seeds) for reader in asked.readers.split(","))
    print(f"{faults} cases outside the contract")
    return 1 if faults else 0


def _watch(reader: str, seeds: range) -> int:
    """Cases of one reader in processes that may die; how many were outside the contract."""
    faults: Counter[str] = Counter()
    first = seeds.start
    while first < seeds.stop and faults["died"] < 20:
        words = ["--worker", "--readers", reader, "--seed", str(first), "--number", str(seeds.stop - first)]
        done = first
        with subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdout
            for line in worker.stdout:
                number, _, sentence = line.rstrip("\n").partition(" ")
                done = int(number)
                if sentence:
                    faults[sentence[:60]] += 1
                    print(f"{reader} seed {number}: {sentence}", flush=True)
        if worker.returncode:
            faults["died"] += 1
            print(f"{reader} seed {done}: its process ended with {worker.returncode}", flush=True)
        first = done + 1 if worker.returncode else seeds.stop
    print(
        f"{reader}: {len(seeds)} cases from seed {seeds.start}, {sum(faults.values())} outside the contract", flush=True
    )
    return sum(faults.values())


def _work(reader: str, seeds: range) -> int:
    """Each seed is printed before it is run, and again with what was wrong."""
    resource.setrlimit(
        resource.RLIMIT_AS, (2 * LIMIT_BYTES, 2 * LIMIT_BYTES)
    )  # of which libraries map much and use little
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            print(seed, flush=True)
            if sentence := fault(reader, seed, Path(folder)):
                print(seed, " ".join(sentence.split()), flush=True)
            if (held := resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024) > LIMIT_BYTES:
                print(seed, f"held {held / 1e9:.1f} GB", flush=True)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
