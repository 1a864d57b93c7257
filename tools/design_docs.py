"""Writes docs/design-results.md: `sartor design` on the published grid for the models of its paper and three beyond it.

python tools/design_docs.py RUNS        # run what RUNS (a folder) does not hold yet, then write the page
python tools/design_docs.py RUNS --all  # the same, and the paper's models at once, and all at once
python tools/design_docs.py RUNS --kept # only what RUNS holds
Each run is the command that the page shows; RUNS keeps the JSON answers.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "design-results.md"
MODELS = {
    "bert-large": 512,
    "opt-350m": 2048,
    "gpt2-xl": 1024,
    "megatron-gpt2-54": 1024,
    "megatron-gpt2-72": 1024,
    "gpt3-175b": 2048,
    "llama-2-7b": 4096,
    "llama-3.1-70b": 4096,
    "mixtral-8x7b": 4096,
    "deepseek-v3": 4096,
}
"""Zoo name -> tokens a sequence: the paper's where it has the model (reference/phaze.md sec. 2)."""
PAPERS = list(MODELS)[:7]
TOGETHER = {"papers": PAPERS, "all": list(MODELS)}
"""File name of a run -> the models that one chip is for."""
COMMON = ("--num-devices", "1024", "--global-batch-size", "4096", "--time-limit", "900", "--json")

HEAD = """# Designs on the published grid

*Written by `tools/design_docs.py` from the answers of the commands shown; nothing here is measured on hardware: all
figures are predictions of one cost model ([concepts/accelerator.md](concepts/accelerator.md)).*

The grid is the published one: 29,360 accelerators x microbatch 1, 2, 4, 8 x recompute none, full x memory 32, 64, 80 GB
(2,113,920 points), 1,024 devices, global batch 4,096. Every row is

    sartor design --model MODEL --seq-len S --num-devices 1024 --global-batch-size 4096 --time-limit 900

on a machine with 2 cores. `optimal` means proved over the whole grid (gap 0); where the limit came first, the gap says
how much better anything could be. The TPUv4-like point is (8, 2, 128, 128, 128, 128 MiB), 278.8 mm2, in the same cost
model (weight gradients, optimizer step, microbatches, links and memory counted), with the same choice of memory.
"""


def main() -> None:
    if len(sys.argv) < 2:
        print(f"{PAGE.name} stays as it is: name the folder that keeps its runs, which take about half an hour")
        return
    runs = Path(sys.argv[1])
    runs.mkdir(exist_ok=True)
    only_kept = "--kept" in sys.argv
    names = [name for name in MODELS if not only_kept or (runs / f"{name}.json").is_file()]
    answers = {name: answer(runs, name, [name]) for name in names}
    if "--all" in sys.argv:
        together = {name: answer(runs, name, models, "--no-baselines") for name, models in TOGETHER.items()}
    else:
        together = {name: kept(runs / f"{name}.json") for name in TOGETHER}
    PAGE.write_text("\n".join(page(answers, together)) + "\n", encoding="utf-8")


def kept(file: Path) -> dict[str, Any] | None:
    return json.loads(file.read_text()) if file.is_file() else None


def answer(runs: Path, name: str, models: list[str], *more: str) -> dict[str, Any]:
    """The kept answer, or that of a run now, with its peak memory."""
    file = runs / f"{name}.json"
    if not file.is_file():
        words = [word for model in models for word in ("--model", model)]
        lengths = ",".join(str(MODELS[model]) for model in models)
        start = time.perf_counter()
        alone = [sys.executable, __file__, "--one", "design", *words, "--seq-len", lengths, *COMMON, *more]
        ran = subprocess.run(alone, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise SystemExit(ran.stderr)
        found = json.loads(ran.stdout)
        found["whole_s"] = time.perf_counter() - start
        found["cpu_s"], found["peak_bytes"] = map(float, ran.stderr.split()[-2:])
        file.write_text(json.dumps(found))
    found = kept(file)
    assert found is not None
    return found


def one() -> None:
    """One command in this process, its CPU seconds and peak memory on stderr."""
    from sartor.cli import main as command

    sys.argv = ["sartor", *sys.argv[2:]]
    try:
        command()
    finally:
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, file=sys.stderr)


def page(answers: dict[str, dict[str, Any]], together: dict[str, dict[str, Any] | None]) -> Iterator[str]:
    yield HEAD
    yield "## Model by model\n"
    yield "| model | status | gap | winner | plan | tokens/s | TPUv4, expert | factor | evaluated | s | CPU s | GiB |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for name, found in answers.items():
        yield row(name, found)
    yield "\nWinner: tensor cores x rows x columns, vector cores x lanes, buffer, memory, area. Plan: t tensor-parallel"
    yield "width, p stages, d copies, e expert-parallel, b microbatch. s: the search alone by the clock, on a machine"
    yield "that others used too; CPU s and GiB: the whole command with its baselines.\n"
    yield "## Why the winner wins\n"
    for name, found in answers.items():
        yield f"- **{name}**: {reason(found)}"
    missing = [name for name in MODELS if name not in answers]
    if missing:
        yield f"\nNot run to the end when this page was written: {', '.join(missing)}."
    yield "\n## Against other ways to choose\n"
    for name, found in answers.items():
        yield f"### {name}\n"
        yield from baselines(found)
    for name, found in together.items():
        if found is not None:
            yield f"\n## {'The models of the paper' if name == 'papers' else 'All models'} at once\n"
            yield from at_once(found)


def row(name: str, found: dict[str, Any]) -> str:
    best, expert = found["best"], baseline(found, "TPUv4-like, expert placement")
    plan = next(iter(best["plan"].values()))
    base = expert["objective"] if expert else None
    cells = [
        name,
        found["status"],
        gap_words(found),
        chip(best),
        words(plan),
        f"{plan['tokens_per_s']:,.0f}",
        "does not fit" if base is None else f"{base * found_seq(found):,.0f}",
        "-" if base is None else f"{best['objective'] / base:.2f}x",
        f"{found['evaluated']:,} of {found['evaluated'] + found['pruned']:,}",
        f"{found['wall_s']:.0f}",
        f"{found['cpu_s']:.0f}",
        f"{found['peak_bytes'] / 2**30:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def found_seq(found: dict[str, Any]) -> int:
    return int(found["question"]["models"][0]["seq_len"])


def baseline(found: dict[str, Any], name: str) -> dict[str, Any] | None:
    for each in found["baselines"]:
        if each["name"] == name and each["objective"] is not None:
            return dict(each)
    return None


def chip(ranked: dict[str, Any]) -> str:
    a = ranked["architecture"]
    tensor = f"{a['num_tensor_cores']} x {a['array_rows']} x {a['array_cols']}"
    vector = f"{a['num_vector_cores']} x {a['vector_lanes']}"
    buffer, memory = a["global_buffer_bytes"] / 2**20, a["hbm_bytes"] / 1e9
    return f"{tensor}, {vector}, {buffer:.0f} MiB, {memory:.0f} GB, {ranked['area_mm2']:.0f} mm2"


def words(plan: dict[str, Any]) -> str:
    experts = f" e{plan['ep']}" if plan["ep"] > 1 else ""
    again = " recompute" if plan["recompute"] == "full" else ""
    return f"t{plan['tp']} p{plan['pp']} d{plan['dp']}{experts} b{plan['microbatch_size']}{again}"


def reason(found: dict[str, Any]) -> str:
    """How many times as fast as the TPUv4-like point, how much of it is placement, and which part of the chip it is."""
    if found.get("reasons"):
        return str(found["reasons"][0]["text"]).partition(": ")[2] + "."
    best = found["best"]
    expert = baseline(found, "TPUv4-like, expert placement")
    searched = baseline(found, "TPUv4-like, searched placement")
    a = best["architecture"]
    peak = a["peak_flops_per_s"] / 275.3e12
    lanes = a["num_vector_cores"] * a["vector_lanes"] / 256
    has = f"{peak:.1f}x the multiply-accumulators and {lanes:.0f}x the vector lanes, in {best['area_mm2']:.0f} mm2"
    if searched or expert:
        there = searched or expert
        has += f" and {best['power_w']:,.0f} W for {there['area_mm2']:.0f} mm2 and {there['power_w']:,.0f} W"
    has += f", with {a['global_buffer_bytes'] / 2**20:.0f} MiB of buffer for 128"
    if searched is None:
        return f"{has}; the TPUv4-like point holds no placement."
    chips = best["objective"] / searched["objective"]
    if expert is None:
        return f"{has}: {chips:.2f}x with placement searched on both; the expert's placement does not fit."
    return (
        f"{has}: {chips:.2f}x with placement searched on both; searching the placement alone gives "
        f"{searched['objective'] / expert['objective']:.2f}x over the expert's ({expert_words(expert)})."
    )


def expert_words(each: dict[str, Any]) -> str:
    return str(each["note"]).rsplit("; ", 1)[-1]


def baselines(found: dict[str, Any]) -> Iterator[str]:
    best = found["best"]["objective"]
    yield "| way | sequences/s | best is | mm2 | W | evaluations | s | note |"
    yield "|---|---|---|---|---|---|---|---|"
    whole = found["best"]
    yield f"| best | {best:,.1f} | | {whole['area_mm2']:.0f} | {whole['power_w']:,.0f} | {found['evaluated']} | " + (
        f"{found['wall_s']:.0f} | {found['status']} |"
    )
    for each in found["baselines"]:
        took = f"{each['evaluated']} | {each['wall_s']:.0f} | {each['note'] or ''} |"
        if each["objective"] is None:
            yield f"| {each['name']} | - | | | | {took}"
        else:
            cells = f"{each['objective']:,.1f} | {best / each['objective']:.2f}x | {each['area_mm2']:.0f}"
            yield f"| {each['name']} | {cells} | {each['power_w']:,.0f} | {took}"
    yield ""


def gap_words(found: dict[str, Any]) -> str:
    """How much better anything could be; the second clock's bounds are rounded down by a millionth."""
    return "below 0.001%" if 0 < found["gap"] < 1e-5 else f"{100 * found['gap']:.1f}%"


def at_once(found: dict[str, Any]) -> Iterator[str]:
    gap, took = f"gap {gap_words(found)}", f"{found['evaluated']} evaluated, {found['wall_s']:.0f} s"
    yield f"Geometric mean of all {len(found['best']['plan'])}: {found['status']}, {gap}, {took},"
    yield f"{found['peak_bytes'] / 2**30:.2f} GiB at most (the process that searches; its two workers about 0.2 each)."
    yield f"Winner: {chip(found['best'])}.\n"
    yield "| model | plan | tokens/s |"
    yield "|---|---|---|"
    for name, plan in found["best"]["plan"].items():
        yield f"| {name} | {words(plan)} | {plan['tokens_per_s']:,.0f} |"


if __name__ == "__main__":
    one() if sys.argv[1:2] == ["--one"] else main()
