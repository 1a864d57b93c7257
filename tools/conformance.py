"""Holds sartor's counts against the truth of transformers, config by config, and writes the conformance page.

python tools/conformance.py compare /tmp/oracle/out [model_type ...]    # what tools/transformers_truth.py generated
python tools/conformance.py golden /tmp/oracle/out                       # writes tests/golden/conformance.*
python tools/conformance.py page                                         # writes docs/conformance.md
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from sartor.errors import InputError
from sartor.interop.huggingface import read_model
from sartor.model.counts import count_params, format_layer_runs, forward_matmul_flops

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = ("params", "text_params", "layer_params_runs", "active_params", "linear_flops", "attention_flops")
TRUTH_NAMES = {"params": "unique_params", "linear_flops": "routed_linear_flops"}


def counted(config: dict[str, Any], seq_len: int) -> dict[str, Any]:
    """Our columns for one config."""
    shape = read_model(config).shape
    counts = count_params(shape)
    flops = forward_matmul_flops(shape, 1, seq_len)
    return {
        "params": counts.total,
        "text_params": counts.text,
        "layer_params_runs": format_layer_runs(shape.main),
        "active_params": counts.active,
        "linear_flops": flops.linear,
        "attention_flops": flops.attention,
    }


def mismatches(config: dict[str, Any], truth: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Columns where we differ, as (ours, truth); columns without truth are left out."""
    ours = counted(config, int(truth.get("seq_len") or 2048))
    out = {}
    for column in COLUMNS:
        want = truth.get(TRUTH_NAMES.get(column, column), "")
        if want != "" and str(ours[column]) != str(want):
            out[column] = (ours[column], want)
    return out


def compare(folder: Path, model_types: list[str]) -> None:
    exact = total = 0
    families: dict[str, bool] = {}
    for file in sorted(folder.glob("*/*/truth.json")):
        model_type, variant = file.parts[-3], file.parts[-2]
        if model_types and model_type not in model_types:
            continue
        truth = json.loads(file.read_text())
        for form in ("config", "sparse"):
            config = json.loads((file.parent / f"{form}.json").read_text())
            if form == "sparse" and len(model_types) != 1 and variant != "default":
                continue
            total += 1
            try:
                wrong = mismatches(config, truth)
            except InputError as error:
                if form == "sparse" and "must be given" in str(error):
                    total -= 1
                    continue
                wrong = {"refused": (str(error)[:160], "")}
            except Exception as error:
                if len(model_types) == 1:
                    traceback.print_exc()
                wrong = {"crashed": (f"{type(error).__name__}: {str(error)[:120]}", "")}
            exact += not wrong
            families[model_type] = families.get(model_type, True) and not wrong
            for column, (ours, want) in wrong.items():
                difference = f"{ours - want:+d}" if isinstance(ours, int) and isinstance(want, int) else ""
                print(
                    f"{model_type:24s} {variant:10s} {form:6s} {column:18s} {str(ours)[:70]} | {str(want)[:60]} {difference}"
                )
    print(f"{exact} of {total} configs exact; {sum(families.values())} of {len(families)} model types")
    print("not exact:", " ".join(name for name, good in families.items() if not good))


if __name__ == "__main__":
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == "compare":
        compare(Path(arguments[0]), arguments[1:])
    else:
        sys.exit(f"unknown command {command}")
