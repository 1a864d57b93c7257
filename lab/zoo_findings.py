"""Write tests/golden/zoo_findings.json: what the rules find over the model zoo. ``--check`` only compares.

A refactor leaves the file as it is. A change of rules or of the cost model rewrites it, and the diff shows which
findings appear, vanish, or change their grade, fix or gain (to three digits). Run: ``python lab/zoo_findings.py``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sartor.answers.advice import FINDING
from sartor.answers.field import to_json
from sartor.hardware.catalog import load_gpu
from sartor.model.workload import ParallelDims, Workload
from sartor.model.zoo import load_model, model_names
from sartor.rules.lint import run_rules
from sartor.rules.rule import Context

FILE = Path(__file__).resolve().parent.parent / "tests" / "golden" / "zoo_findings.json"
QUESTIONS = (("a100_sxm", 1), ("h100_sxm", 8), ("mi300x", 1))
"""Training on 4 x 2048 tokens: GPU and tensor-parallel degree."""


def findings() -> dict[str, list[str]]:
    """``"model on gpu tp=n"`` -> one line per finding."""
    return {
        f"{model} on {gpu} tp={tp}": [_line(to_json(f, FINDING)) for f in run_rules(_context(model, gpu, tp))]
        for gpu, tp in QUESTIONS
        for model in model_names()
    }


def _context(model: str, gpu: str, tp: int) -> Context:
    device = load_gpu(gpu)
    shape = load_model(model)
    length = min(2048, shape.max_positions or 2048)
    workload = Workload(shape=shape, microbatch_size=4, seq_len=length, dtype=device.default_dtype)
    return Context.of(workload, device, ParallelDims(tp=tp))


def _line(finding: dict[str, Any]) -> str:
    gain = "cannot run" if finding["gain_fraction"] is None else f"{finding['gain_fraction']:.3f}"
    fix = " ".join(f"{name}={value}" for name, value in finding["fix"].items())
    return f"{finding['grade']} {finding['rule']} {finding['field']}={finding['value']} gain {gain} fix {fix or '-'}"


def text() -> str:
    return json.dumps({"questions": "training, 4 x 2048 tokens", "findings": findings()}, indent=1) + "\n"


def main() -> int:
    wanted = text()
    if "--check" in sys.argv[1:]:
        stale = not FILE.exists() or FILE.read_text("utf-8") != wanted
        print("the findings over the zoo have changed" if stale else "the findings over the zoo are unchanged")
        return int(stale)
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(wanted, "utf-8")
    print(f"wrote {FILE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
