"""Compare the plans of published runs with the plans that the search finds for the same jobs.

``python benchmarks/published_plans.py [NAME ...]`` prints the table of docs/case_studies/published-plans.md;
``--write`` puts it there. The published plan counts as confirmed if it is the one found, or if the found plan is faster
by no more than its interval, or simpler. Measured times are the authors' (sources on the page).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import sartor
from sartor.plans.result import PricedPlan
from sartor.report.plan_words import plan_words

PAGE = Path(__file__).resolve().parent.parent / "docs" / "case_studies" / "published-plans.md"
BEGIN, END = "<!-- published plans: written by benchmarks/published_plans.py -->", "<!-- /published plans -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published job, its plan and its step time."""

    name: str
    model: str
    cluster: str
    devices: int
    batch: int
    seq_len: int
    dtype: str
    framework: str
    plan: Mapping[str, int | str]
    took_s: float
    free: Mapping[str, int | str]
    """Fields that stay as published in the search for other plans (switches of the trainer)."""
    attention: str = "flash"


OVERLAP = {"tp_overlap": "on"}
"""As in Megatron Bridge's recipes."""
NEMO_2023 = {"p2p_overlap": "off", "dp_overlap": "off", "dropout": "on"}
"""From the launcher's gpt3/175b.yaml of TP8 PP16 VP6: selective recomputation, ``overlap_grad_sync: False``, no field
yet for overlapping transfers, dropout of 0.1 (read 2026-11-24 in a copy; NVIDIA's own tag was not available)."""
DEEPSEEK = {"deepep": "on", "moments_dtype": "bf16"}
"""As DeepSeek-V3 was trained (arXiv 2412.19437, sec. 3.2.2 and 3.3.3)."""
RUNS = (
    Published(
        name="GPT-3 175B, 1,024 A100", model="gpt3-175b", cluster="dgx-a100", devices=1024, batch=2048, seq_len=2048,
        dtype="bf16", framework="nemo@23.03", took_s=38.24, free=NEMO_2023, attention="unfused",
        plan={"tp": 8, "pp": 16, "virtual_stages": 6, "cp": 1, "microbatch_size": 1, "recompute": "selective"},
    ),
    Published(
        name="Llama 3 8B, 8 H100", model="llama-3.1-8b", cluster="dgx-h100", devices=8, batch=128, seq_len=8192,
        dtype="fp8_current", framework="nemo@25.11", took_s=9.19, free=OVERLAP,
        plan={"tp": 1, "pp": 1, "microbatch_size": 1, "zero_stage": 3, "recompute": "full", "recompute_layers": 5},
    ),
    Published(
        name="Llama 3 70B, 64 H100", model="llama-3.1-70b", cluster="dgx-h100", devices=64, batch=256, seq_len=8192,
        dtype="fp8_current", framework="nemo@26.04", took_s=19.99, free=OVERLAP,
        plan={"tp": 4, "pp": 8, "virtual_stages": 5, "cp": 1, "microbatch_size": 1, "recompute": "none"},
    ),
    Published(
        name="Llama 3.1 405B, 512 H100", model="llama-3.1-405b", cluster="dgx-h100", devices=512, batch=256,
        seq_len=8192, dtype="bf16", framework="nemo@25.05", took_s=19.81, free=OVERLAP,
        plan={"tp": 8, "pp": 8, "virtual_stages": 8, "cp": 2, "microbatch_size": 1},
    ),
    Published(
        name="Llama 3.1 405B, 16,384 H100", model="llama-3.1-405b", cluster="dgx-h100", devices=16384, batch=2048,
        seq_len=8192, dtype="bf16", framework="llama-3", took_s=6.6, free={},
        plan={"tp": 8, "pp": 16, "cp": 1, "microbatch_size": 1},
    ),
    Published(
        name="DeepSeek-V3, 2,048 H800", model="deepseek-v3", cluster="dgx-h100", devices=2048, batch=15360,
        seq_len=4096, dtype="fp8_block", framework="hai-llm", took_s=20.1, free=DEEPSEEK,
        plan={"tp": 1, "pp": 16, "cp": 1, "ep": 64, "schedule": "dual_pipe_v", "microbatch_size": 1, **DEEPSEEK},
    ),
)  # fmt: skip


def asked(run: Published, fix: Mapping[str, int | str]) -> PricedPlan | None:
    """The fastest plan of a job with some fields fixed."""
    found = sartor.plan(
        run.model,
        run.cluster,
        num_devices=run.devices,
        global_batch_size=run.batch,
        seq_len=run.seq_len,
        dtype=run.dtype,
        framework=run.framework,
        attention=run.attention,
        fix=fix,
    )
    return found.best


def kinds(plan: PricedPlan) -> int:
    """Number of kinds of parallelism besides data parallelism."""
    d = plan.plan.dims
    return sum(int(each) > 1 for each in (d.tp, d.pp, d.cp, d.ep, plan.plan.virtual_stages))


def verdict(published: PricedPlan, found: PricedPlan) -> str:
    """Whether the published plan is the one found, or the advantage of the one found."""
    if published.plan == found.plan:
        return "the same"
    gain = published.step_s / found.step_s - 1
    if published.step_s > found.high_s:
        return f"{gain:.0%} faster, beyond its interval"
    simpler = kinds(found) < kinds(published)
    return f"{gain:.0%} faster, within its interval" + (", simpler" if simpler else "")


def rows(runs: Sequence[Published]) -> Iterator[str]:
    yield "| job | published | priced | error | plan found | its step (80%) | beside the published one | CPU |"
    yield "|---|---|---|---|---|---|---|---|"
    for run in runs:
        begun = time.process_time()
        priced, found = asked(run, {**run.free, **run.plan}), asked(run, run.free)
        spent = time.process_time() - begun
        if priced is None or found is None:
            yield f"| {run.name} | {run.took_s:g} s | does not fit by our count | | | | | {spent:.0f} s |"
            continue
        yield (
            f"| {run.name} | {run.took_s:g} s | {priced.step_s:.2f} s | {priced.step_s / run.took_s - 1:+.0%} | "
            f"{plan_words(found.plan, short=True)} | {found.step_s:.2f} s ({found.low_s:.2f} to {found.high_s:.2f}) | "
            f"{verdict(priced, found)} | {spent:.0f} s |"
        )


def main() -> int:
    names = [word for word in sys.argv[1:] if not word.startswith("--")]
    lines = []
    for line in rows([run for run in RUNS if not names or any(name in run.name for name in names)]):
        print(line, flush=True)
        lines.append(line)
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text("\n".join([before + BEGIN, "", *lines, "", END + rest.partition(END)[2]]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
