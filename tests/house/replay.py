"""Ask a few hundred questions through the command line's front door, and compare their key numbers with those on file.

Nothing is known here but command lines and the contract's JSON, so that walls may move behind them.

``python tests/house/replay.py`` prints what differs from tests/golden/replay.json, question by question, and sums it
up by command; ``--record`` writes the file too. ``--only WORDS`` looks at the questions that hold these words.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import shlex
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(REPO / "tests"))

from house.replay_questions import MADE, questions  # noqa: E402
from sartor.cli import main as sartor  # noqa: E402

Answer = dict[str, Any]
GOLDEN = REPO / "tests" / "golden" / "replay.json"
SHARED = REPO.parent / "shared"
DIGITS = 9
TOLERANCE = 1e-6
"""Relative: another machine's BLAS kernel moves a price by up to 4e-7. What must be equal to the last bit is compared
within one machine (tests/house/test_one_price.py, test_same_bytes.py)."""
ZERO = 1e-12
"""A difference of seconds, or a gap, below this is none."""
ERRORS, ERROR = ("groups.", "overall."), 1e-6
"""Figures of ``validate`` are errors, small differences of times: another processor's rounding moves them by less."""
SHOWN = 12
"""Numbers told of a question that changed."""


def ask(question: str, folder: Path) -> Answer:
    """The key numbers of the answer to one command line; `folder` holds what `make_files` wrote."""
    words = [_file_of(word, folder) for word in shlex.split(question)]
    if words[0] == "schedule":  # 2 s of processor, but another program may have it
        words += ["--time-limit", "600"]
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            sartor([*words, "--json"])
        except SystemExit as end:
            code = end.code
    assert out.getvalue(), f"sartor {question} answered nothing: {err.getvalue()}"
    body = json.loads(out.getvalue())
    digest = _refusal(body["error"]) if "error" in body else DIGESTS[words[0]](body)
    return {"exit": code} | _rounded(digest)


def _refusal(error: Answer) -> Answer:
    """The field at fault; an internal error is no answer to record."""
    assert not error.get("internal"), error
    assert error["field"] != "sartor", error
    return {"field": error["field"]}


def make_files(folder: Path) -> None:
    """Write the files that questions name by made/ and configs/."""
    for name, text in MADE.items():
        (folder / "made").mkdir(exist_ok=True)
        (folder / "made" / name).write_text(text)
    for line in (REPO / "tests" / "golden" / "configs.jsonl").read_text().splitlines():
        row = json.loads(line)
        path = folder / "configs" / row["model_type"] / row["variant"]
        if any(f"configs/{row['model_type']}/{row['variant']} " in q for qs in questions().values() for q in qs):
            path.mkdir(parents=True)
            (path / "config.json").write_text(json.dumps(row["config"]))


def _file_of(word: str, folder: Path) -> str:
    if word.startswith(("made/", "configs/")):
        return str(folder / word)
    if word.startswith(("examples/", "tests/")):
        return str(REPO / word)
    return str(REPO.parent / word) if word.startswith("shared/") else word


# The key numbers of each command's JSON.


def _of(body: Answer | None, words: str) -> Answer | None:
    """The named keys of an object, as far as it has them."""
    return None if body is None else {key: body[key] for key in words.split() if key in body}


TIMES = "time_s low_s high_s source"
OPERATOR = f"batch m n k flops bytes_moved {TIMES} compute_s memory_s overhead_s network_s bound_by"
TILE = "tile_m tile_n waves tile_efficiency wave_efficiency"
TOTALS = f"layer_time_s {TIMES} flops tokens_per_s mfu step_s peak_bytes fits memory"
PARAMS = "num_params num_active_params text_params"
AXES = "tp pp dp cp ep virtual_stages microbatch_size num_microbatches sequence_parallel zero_stage recompute"
STEP = "step_s low_s high_s source tokens_per_s_per_device mfu peak_bytes memory time"
CHIP = "num_tensor_cores array_rows array_cols num_vector_cores vector_lanes global_buffer_bytes hbm_bytes dtype"
CHOSEN = "area_mm2 power_w usd throughput objective"
GROUP = "rows targets expressed mape median_error p90_error bias coverage_80 kendall_tau memory_mape pair_accuracy"


def _estimate(body: Answer) -> Answer:
    parts: dict[str, dict[str, float]] = defaultdict(lambda: {"time_s": 0.0, "flops": 0.0})
    bounds: Counter[str] = Counter()
    for operator in body["operators"]:
        part = parts[f"{operator['kind']} {operator['pass']}"]
        part["time_s"] += operator["count"] * operator["time_s"]
        part["flops"] += operator["count"] * operator["flops"]
        bounds[operator["bound_by"]] += operator["count"]
    return {
        "totals": _of(body["totals"], TOTALS),
        "model": _of(body["model"], PARAMS),
        "bytes_moved": sum(operator["count"] * (operator["bytes_moved"] or 0) for operator in body["operators"]),
        "bound_by": dict(sorted(bounds.items())),
        "parts": dict(sorted(parts.items())),
    }


def _gemm(body: Answer) -> Answer:
    return _of(body, f"dtype {OPERATOR} {TILE}") or {}


def _collective(body: Answer) -> Answer:
    return _of(body, f"group_size message_bytes {TIMES} overhead_s network_s bound_by busbw_bytes_per_s") or {}


def _findings(findings: list[Answer]) -> Answer:
    """By rule; a rule's second finding has a 2 behind its name."""
    seen: Counter[str] = Counter()
    told: Answer = {}
    for finding in findings:
        seen[finding["rule"]] += 1
        name = finding["rule"] if seen[finding["rule"]] == 1 else f"{finding['rule']} {seen[finding['rule']]}"
        told[name] = _of(finding, "grade value gain_s gain_fraction fix")
    return told


def _lint(body: Answer) -> Answer:
    return {"worst_grade": body["worst_grade"], "findings": _findings(body["findings"])}


def _advise(body: Answer) -> Answer:
    keys = "changed num_fields num_params time_s low_s high_s speedup speedup_low speedup_high confidence per_gpu"
    gain = "efficiency_gain efficiency_low efficiency_high"
    return {
        "baseline": _of(body["baseline"], TOTALS),
        "candidates": [_of(candidate, f"{keys} {gain}") for candidate in body["candidates"]],
        "rules": [finding["rule"] for finding in body["findings"]],
    }


def _plan(body: Answer) -> Answer:
    if "launch" in body:
        named = {"plan": _of(body.get("plan"), f"{AXES} {STEP}"), "findings": _findings(body["findings"])}
        return {"status": body["status"], **named}
    best = _of(body["best"], f"{AXES} {STEP}")
    return {"status": body["status"], "best": best, "top": [_of(plan, f"{AXES} step_s") for plan in body["top"][1:]]}


def _place(body: Answer) -> Answer:
    keys = "status time_per_batch_s tensor_parallel data_parallel num_stages fixed_strategy_time_per_batch_s"
    stages = [{**stage, "layers": len(stage["layers"])} for stage in body.get("stages") or []]
    return {**(_of(body, keys) or {}), "stages": stages}


def _schedule(body: Answer) -> Answer:
    """Which of several best schedules is found is no part of the answer."""
    return _of(body, "status makespan lower_bound gap") or {}


def _design(body: Answer) -> Answer:
    answer = _of(body, "status upper_bound gap space_size") or {}
    answer["best"] = _chip(body["best"]) if body.get("best") else None
    if body.get("pareto_proved"):
        answer["pareto"] = [_chip(point) for point in body["pareto"]]
    answer["baselines"] = [_of(baseline, "name objective") for baseline in body.get("baselines") or []]
    return answer


def _chip(point: Answer) -> Answer:
    plans = {name: _of(plan, f"{AXES} {STEP}") for name, plan in point["plan"].items()}
    return {"architecture": _of(point["architecture"], CHIP), **(_of(point, CHOSEN) or {}), "plan": plans}


def _validate(body: Answer) -> Answer:
    asked = {"table", "gpu", "dtype", "phase", "op", "framework", "mode", "source"}
    groups = {
        " ".join(str(value) for key, value in group.items() if key in asked): _of(group, GROUP)
        for group in body["groups"]
    }
    answer = {"expressed": body["expressed"], "not_expressed": sum(body["not_expressed"].values()), "groups": groups}
    if "oom_correct" in body.get("overall", {}):  # of training; tests/accuracy holds them against their marks
        answer["overall"] = _of(body["overall"], "targets mape memory_mape oom_correct pair_accuracy naive_mape")
    return answer


def _catalog(body: Answer) -> Answer:
    return {"entries": len(body["entries"])}


DIGESTS: dict[str, Callable[[Answer], Answer]] = {
    "estimate": _estimate,
    "gemm": _gemm,
    "collective": _collective,
    "lint": _lint,
    "advise": _advise,
    "plan": _plan,
    "place": _place,
    "schedule": _schedule,
    "design": _design,
    "validate": _validate,
    "catalog": _catalog,
}

HEADLINES = {
    "estimate": "totals.time_s",
    "gemm": "time_s",
    "collective": "time_s",
    "advise": "candidates.0.speedup",
    "plan": "best.step_s",
    "place": "time_per_batch_s",
    "schedule": "makespan",
    "design": "best.objective",
}
"""The number of an answer whose change is summed up."""


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


# Comparing.


def differences(old: Answer, new: Answer) -> dict[str, tuple[Any, Any]]:
    """Where two answers differ: path to what was and what is; None stands for what is not there."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    paths = dict.fromkeys([*before, *after])
    return {p: (before.get(p), after.get(p)) for p in paths if not _same(p, before.get(p), after.get(p))}


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict | list):
        yield path, value
        return
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _leaves(part, f"{path}.{key}" if path else str(key))


def _same(path: str, old: Any, new: Any) -> bool:
    if isinstance(old, float) or isinstance(new, float):
        zero = ERROR if path.startswith(ERRORS) else ZERO
        return _numbers(old, new) and math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=zero)
    return bool(old == new)


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def change(old: Any, new: Any) -> str:
    """What was and what is, as a line of the diff."""
    share = f"  ({new / old - 1:+.3%})" if _numbers(old, new) and old else ""
    return f"{old} -> {new}{share}"


# The file.


def load() -> dict[str, dict[str, Answer]]:
    """The recorded answers: section to question to answer."""
    return json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}


def save(sections: dict[str, dict[str, Answer]]) -> None:
    """One line a question, so that a change of the file reads as one."""
    told = [
        f" {json.dumps(section)}: {{\n"
        + ",\n".join(f"  {json.dumps(question)}: {json.dumps(answer)}" for question, answer in answers.items())
        + "\n }"
        for section, answers in sections.items()
    ]
    GOLDEN.write_text("{\n" + ",\n".join(told) + "\n}\n")


def replay(only: str) -> dict[str, dict[str, Answer]]:
    """Ask every question anew; those left out, and those about files that are absent, keep their recorded answers."""
    recorded, clocks = load(), Counter[str]()
    answers: dict[str, dict[str, Answer]] = {}
    with tempfile.TemporaryDirectory() as name:
        make_files(Path(name))
        for section, asked in questions().items():
            answers[section] = {}
            for question in asked:
                kept = recorded.get(section, {}).get(question)
                begun = time.process_time()
                if only in question and (section != "shared" or SHARED.exists()):
                    kept = ask(question, Path(name))
                if kept is not None:
                    answers[section][question] = kept
                clocks[section] += time.process_time() - begun
    print(
        "CPU seconds:",
        ", ".join(f"{k} {s:.1f}" for k, s in clocks.items()),
        f"; all {clocks.total():.1f}",
        file=sys.stderr,
    )
    return answers


def report(old: dict[str, dict[str, Answer]], new: dict[str, dict[str, Answer]]) -> Iterable[str]:
    """Every difference under its question, then one line a section."""
    sums = []
    for section in dict.fromkeys([*old, *new]):
        before, after = old.get(section, {}), new.get(section, {})
        found = {q: differences(before[q], after[q]) for q in before if q in after}
        changed = {question: diff for question, diff in found.items() if diff}
        for question, diff in changed.items():
            yield f"sartor {question}"
            yield from (f"    {path}: {change(*pair)}" for path, pair in list(diff.items())[:SHOWN])
            if len(diff) > SHOWN:
                yield f"    and {len(diff) - SHOWN} more"
        sums.append(_summary(section, changed, len(found), len(after.keys() - before), len(before.keys() - after)))
    yield from ("", *sums)


def _summary(section: str, changed: Answer, asked: int, added: int, gone: int) -> str:
    line = f"{section}: {len(changed)} of {asked} changed"
    moved = {question: _headline_change(question, diff) for question, diff in changed.items()}
    shares = {question: share for question, share in moved.items() if share is not None}
    if shares:
        worst = max(shares, key=lambda question: abs(shares[question]))
        line += f"; headline numbers of {len(shares)}: median {statistics.median(shares.values()):+.2%}"
        line += f", largest {shares[worst]:+.2%} ({worst})"
    return line + (f"; {added} new" if added else "") + (f"; {gone} no longer asked" if gone else "")


def _headline_change(question: str, diff: dict[str, tuple[Any, Any]]) -> float | None:
    old, new = diff.get(HEADLINES.get(question.split()[0], ""), (None, None))
    return new / old - 1 if _numbers(old, new) and old else None


def main() -> int:
    """Print the diff; with --record, write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", action="store_true", help="write tests/golden/replay.json")
    parser.add_argument("--only", default="", metavar="WORDS", help="ask only the questions that hold these words")
    asked = parser.parse_args()
    old, new = load(), replay(asked.only)
    print("\n".join(report(old, new)))
    if asked.record:
        save(new)
    return int(any(differences(old.get(section, {}), new[section]) for section in new))


if __name__ == "__main__":
    sys.exit(main())
