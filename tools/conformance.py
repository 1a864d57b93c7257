"""Holds sartor's counts against the truth of transformers, config by config, and writes the conformance page.

python tools/conformance.py compare /tmp/oracle/out [model_type ...]    # what tools/transformers_truth.py generated
python tools/conformance.py golden /tmp/oracle/out                       # writes tests/golden/conformance.*
python tools/conformance.py page                                         # writes docs/conformance.md
"""

from __future__ import annotations

import csv
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from sartor.errors import InputError
from sartor.interop.huggingface import read_model
from sartor.model.counts import count_params, format_layer_runs, forward_matmul_flops

ESSENTIAL = ("hidden_size", "num_hidden_layers", "vocab_size", "d_model", "n_embd", "n_layer", "num_layers", "dim")
"""Fields no published file omits; without them the reader refuses on purpose."""
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
                if form == "sparse" and error.field in ESSENTIAL:
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
                where = f"{model_type:24s} {variant:10s} {form:6s} {column:18s}"
                print(f"{where} {str(ours)[:70]} | {str(want)[:60]} {difference}")
    print(f"{exact} of {total} configs exact; {sum(families.values())} of {len(families)} model types")
    print("not exact:", " ".join(name for name, good in families.items() if not good))


# -- golden rows and the page ---------------------------------------------------------------------------------------

GOLDEN = ROOT / "tests/golden"
BLOCKS = "blocks of a sparse pattern are computed, not the square; what is executed depends on the implementation"
TOWERS = "the towers are not described yet; the text part is exact"
TABLE = "the class builds another list of layers than a reader of the paper would"
NOT_SETTLED: dict[str, dict[str, str]] = {
    "longt5": {"attention_flops": BLOCKS},
    "bigbird_pegasus": {"attention_flops": BLOCKS},
    "pegasus_x": {"attention_flops": BLOCKS, "linear_flops": BLOCKS},
    "albert": {"layer_params_runs": "all layers hold one set of weights, which the class lists once"},
    "xlm": {"layer_params_runs": TABLE},
    "flaubert": {"layer_params_runs": TABLE},
    "zamba": {"*": "with tie_word_embeddings false the class unties the shared block as well"},
    "zamba2": {"*": "with tie_word_embeddings false the class unties the shared block as well"},
}
SOURCE = "transformers 5.23.0, torch 2.13.0, meta device, made by tools/transformers_truth.py, 2026-11-21"


def golden(folder: Path) -> None:
    """Rows and configs of everything that agrees; what does not is printed."""
    rows, configs, left_out = [], [], []
    for file in sorted(folder.glob("*/*/truth.json")):
        model_type, variant = file.parts[-3], file.parts[-2]
        truth = json.loads(file.read_text())
        config = smallest(file.parent, truth)
        try:
            wrong = mismatches(config, truth)
        except (InputError, AssertionError, KeyError, TypeError, ValueError) as error:
            left_out.append((model_type, variant, str(error)[:120]))
            continue
        known = {c: r for c, r in reasons(model_type, config).items() if c in wrong}
        if set(wrong) - set(known):
            left_out.append((model_type, variant, ", ".join(sorted(set(wrong) - set(known)))))
            continue
        row = {column: truth.get(TRUTH_NAMES.get(column, column), "") for column in COLUMNS}
        row |= dict.fromkeys(known, "")
        note = "; ".join(sorted(set(known.values())))
        rows.append(
            {"model_type": model_type, "variant": variant, "seq_len": truth.get("seq_len", ""), **row, "note": note}
        )
        configs.append({"model_type": model_type, "variant": variant, "config": config})
    write_golden(rows, configs)
    for entry in left_out:
        print("left out", *entry)
    print(len(rows), "rows,", len({r["model_type"] for r in rows}), "model types,", len(left_out), "left out")


def reasons(model_type: str, config: dict[str, Any]) -> dict[str, str]:
    """Columns that a config of this type does not settle, and why."""
    known = NOT_SETTLED.get(model_type, {})
    if "*" in known:
        untied = config.get("tie_word_embeddings") is False
        known = dict.fromkeys(("params", "text_params", "active_params"), known["*"]) if untied else {}
    reading = read_model(config)
    if any("left out" in because for because in reading.inexact_because):
        known = known | dict.fromkeys(("params", "active_params"), TOWERS)
    return known


def smallest(folder: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """The fewest fields that say the same: those that are not the class's defaults, and the sizes no file omits."""
    full = json.loads((folder / "config.json").read_text())
    sparse = json.loads((folder / "sparse.json").read_text())
    small = {k: v for k, v in full.items() if k in ESSENTIAL or k in ("architectures", "vocab_size")} | sparse
    for name in ("transformers_version", "id2label", "label2id", "dtype"):
        small.pop(name, None)
        full.pop(name, None)
    try:
        return small if not mismatches(small, truth) else full
    except (InputError, KeyError):
        return full


def write_golden(rows: list[dict[str, Any]], configs: list[dict[str, Any]]) -> None:
    with (GOLDEN / "conformance.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["model_type", "variant", "seq_len", *COLUMNS, "note", "source"])
        writer.writeheader()
        writer.writerows({**row, "source": SOURCE} for row in rows)
    lines = [json.dumps(c, separators=(",", ":"), sort_keys=True) for c in configs]
    (GOLDEN / "configs.jsonl").write_text("\n".join(lines) + "\n")


def page(shared: Path) -> None:
    """docs/conformance.md from the reference configs and the golden rows."""
    rows = list(csv.DictReader((GOLDEN / "conformance.csv").open()))
    by_type: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        by_type.setdefault(row["model_type"], []).append(row)
    full = sum(all(not r["note"] for r in group) for group in by_type.values())
    published = list(published_rows(shared))
    lines = [
        "# Conformance: counts against the published classes",
        "",
        "<!-- written by tools/conformance.py; do not edit -->",
        "",
        "Every count is compared to the unit with what transformers 5.23.0 builds on the meta device: parameters, text",
        "part, parameters of every layer, active parameters, FLOPs of linear layers and of attention (full square).",
        "",
        f"- {sum(r[-1] == 'exact' for r in published)} of {len(published)} published config.json files "
        "(shared/data/configs): exact in every column their truth settles.",
        f"- {len(by_type)} model types, {len(rows)} configurations (class defaults and perturbed ones): {full} types "
        "exact in every column, the others as noted.",
        "",
        "## Published files",
        "",
        "| model | model_type | compared columns |",
        "|---|---|---|",
        *(f"| {name} | {kind} | {verdict} |" for name, kind, verdict in published),
        "",
        "## Model types",
        "",
        "| model_type | configs | " + " | ".join(COLUMNS) + " | why not |",
        "|---|---|" + "---|" * len(COLUMNS) + "---|",
    ]
    for model_type, group in sorted(by_type.items()):
        note = "; ".join(sorted({r["note"] for r in group if r["note"]}))
        cells = [verdict_of(group, column) for column in COLUMNS]
        lines.append(f"| {model_type} | {len(group)} | " + " | ".join(cells) + f" | {note} |")
    (ROOT / "docs/conformance.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines[7:10]))


def verdict_of(group: list[dict[str, str]], column: str) -> str:
    """Exact where every config has a truth; a dash where none has one; else partly."""
    given = [bool(r[column]) for r in group]
    if all(given):
        return "exact"
    if any(given):
        return "exact where settled"
    return "not settled" if any(r["note"] for r in group) else "no truth"


def published_rows(shared: Path) -> list[tuple[str, str, str]]:
    out = []
    for row in csv.DictReader((shared / "truth.csv").open()):
        config = shared / row["family"] / row["name"] / "config.json"
        if row["status"] != "ok":
            try:
                read_model(config)
                verdict = "read by its field names, said to be inexact"
            except InputError as error:
                verdict = f"refused: {error}"
            out.append((row["name"], row["model_type"], verdict))
            continue
        truth = {**row, "unique_params": row["expected_params"], "text_params": row["text_params"]}
        wrong = mismatches(json.loads(config.read_text()), truth)
        out.append((row["name"], row["model_type"], "exact" if not wrong else f"differs: {', '.join(wrong)}"))
    return out


if __name__ == "__main__":
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == "compare":
        compare(Path(arguments[0]), arguments[1:])
    elif command == "golden":
        golden(Path(arguments[0]))
    elif command == "page":
        page(Path(arguments[0]) if arguments else ROOT.parent / "shared/data/configs")
    else:
        sys.exit(f"unknown command {command}")
