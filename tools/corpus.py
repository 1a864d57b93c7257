"""Read every file of ``tests/corpus`` and compare it with its right reading: ``make corpus``.

A file is read, partly read (with what it does not say stated beside it), refused, or wrong: a fact differs, it was
answered though it says no run, or refused for another reason than the true one."""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path

from sartor.api.logged_plan import launched_on
from sartor.api.questions import checked_words
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.launch.files import read_launch
from sartor.launch.options import facts_of
from sartor.model.zoo import load_model
from sartor.plans.fixed import settings
from sartor.run.fields import Run

CORPUS = Path(__file__).resolve().parents[1] / "tests" / "corpus"


def outcomes(folder: Path = CORPUS) -> dict[str, tuple[str, str]]:
    """By file: read, partly, refused or wrong, and what is wrong with it."""
    table = tomllib.loads((folder / "readings.toml").read_text(encoding="utf-8"))
    return {
        f"{dialect}/{name}": _outcome(folder / dialect / name, dict(right))
        for dialect, files in table.items()
        for name, right in files.items()
    }


def _outcome(path: Path, right: dict[str, object]) -> tuple[str, str]:
    stated, words = dict(right.pop("give", {})), str(right.pop("refused", ""))  # type: ignore[call-overload]
    if stated and not words:
        try:
            _facts(path, {})
        except InputError:
            pass
        else:
            return "wrong", f"answered without {', '.join(stated)}"
    try:
        facts = _facts(path, stated)
    except InputError as error:
        if words:
            return ("refused", "") if words in str(error) else ("wrong", f"refused for another reason: {error}")
        return "refused", str(error)
    if words:
        return "wrong", "answered, and should be refused"
    differ = [f"{name}={facts.get(name)}, not {value}" for name, value in right.items() if facts.get(name) != value]
    return ("wrong", "; ".join(differ)) if differ else ("partly" if stated else "read", "")


def _facts(path: Path, stated: dict[str, object]) -> dict[str, object]:
    """Every fact of a launch by its option's name, with these options beside it."""
    options = {name: value for name, value in stated.items() if name != "model"}
    shape = load_model(str(stated["model"])) if "model" in stated else None
    run = Run.stated(**checked_words(options))
    reading = read_launch(path, num_devices=int(run.get("num_devices", 0)), shape=shape, run=run)
    job, plan, _, _ = launched_on(reading, run, shape, load_cluster("dgx-b200"))
    adapters = {"lora_rank": job.lora_rank, "lora_targets": job.lora_targets.value, "frozen_bits": job.frozen_bits}
    return {
        **settings(job),
        **facts_of(job, plan),
        **adapters,
        "model": job.shape.name,
        "framework": job.trainer.names[0],
    }


def main() -> int:
    """Print the counts of each dialect and every file that is wrong; 1 if there is one."""
    results = outcomes()
    by_dialect: dict[str, Counter[str]] = {}
    for name, (outcome, _) in results.items():
        by_dialect.setdefault(name.partition("/")[0], Counter())[outcome] += 1
    print(f"{'dialect':<14}  {'read':>6}  {'partly':>6}  {'refused':>7}  {'wrong':>6}")
    for dialect, counts in [*by_dialect.items(), ("all", sum(by_dialect.values(), Counter()))]:
        print(
            f"{dialect:<14}  {counts['read']:>6}  {counts['partly']:>6}  {counts['refused']:>7}  {counts['wrong']:>6}"
        )
    for name, (outcome, why) in results.items():
        if why:
            print(f"{outcome}: {name}: {why}")
    return int(any(outcome == "wrong" for outcome, _ in results.values()))


if __name__ == "__main__":
    sys.exit(main())
