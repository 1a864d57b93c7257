"""Compare sartor's counts with the true counts of transformers, config by config, and write the conformance page.

python lab/conformance.py compare /tmp/oracle/out [model_type ...]    # what lab/transformers_truth.py generated
python lab/conformance.py golden /tmp/oracle/out /tmp/oracle/heads       # tests/golden/conformance.*, verified.json
python lab/conformance.py tables /tmp/oracle/tables /tmp/oracle/out    # writes tensor_tables.json
python lab/conformance.py page                                     # writes lab/notebook/conformance.md and its table
"""

from __future__ import annotations

import contextlib
import csv
import json
import sys
import traceback
from pathlib import Path
from typing import Any

from sartor.errors import InputError
from sartor.model.counts import count_params, forward_matmul_flops, layer_runs
from sartor.read.config_text import packaged_json
from sartor.read.families import model_types
from sartor.read.huggingface import read_model
from sartor.read.verified import ignored_fields, part_name

ESSENTIAL = ("hidden_size", "num_hidden_layers", "vocab_size", "d_model", "n_embd", "n_layer", "num_layers", "dim")
"""Fields that no published file omits; the reader deliberately refuses files without them."""
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
        "built_params": counts.total - (shape.vocab_size * shape.hidden_size if shape.stored_head else 0),
        "text_params": counts.text,
        "layer_params_runs": ";".join(f"{n}x{params}" for n, params in layer_runs(shape.main)),
        "active_params": counts.active,
        "linear_flops": flops.linear,
        "attention_flops": flops.attention,
    }


def mismatches(config: dict[str, Any], truth: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Columns that differ, as (ours, truth); columns without a true value are left out."""
    ours = counted(config, int(truth.get("seq_len") or 2048))
    out = {}
    for column in COLUMNS:
        want = truth.get(TRUTH_NAMES.get(column, column), "")
        alike = {str(ours[column]), str(ours["built_params"]) if column == "params" else str(ours[column])}
        if want != "" and str(want) not in alike:
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


def tables(learnt: Path, folder: Path) -> None:
    """Write tensor_tables.json from the results of lab/tensor_tables.py, for types whose reader alone is not exact.

    Only the missing part is kept, and only if the polynomials were right for all configs they were checked with.
    """
    target = ROOT / "src/sartor/read/tensor_tables.json"
    target.write_text('{"source":"","model_types":{}}')
    lines = []
    for file in sorted(learnt.glob("*.json")):
        entry, wrong = json.loads(file.read_text()), set()
        checked = entry.pop("checked")
        if len(checked) < 2 or any(x != "ok" and "/" not in x for x in checked):  # sizes that do not divide
            print("not held:", file.stem, checked[:3])
            continue
        silent = False
        model_type, _, name = file.stem.partition(":")
        for path in sorted(folder.glob(f"{model_type}/*/truth.json")):
            truth = json.loads(path.read_text())
            if name and truth["model_class"] != name:
                continue
            silent |= truth["text_params"] == ""
            with contextlib.suppress(InputError):
                wrong |= mismatches(json.loads((path.parent / "config.json").read_text()), truth).keys()
        if not wrong & {"params", "text_params"} or model_type not in model_types():
            continue
        entry["text"] = entry["text"] if "text_params" in wrong or silent else []
        if not entry["tower"]:
            entry["guards"]["text"] |= entry["guards"].pop("tower")
            entry["guards"]["tower"] = {}
        names = {n for kind in ("tower", "text") for _, m in entry[kind] for name in m for n in name.split("//")}
        entry["defaults"] = {k: v for k, v in entry["defaults"].items() if k in names}
        lines.append(f"{json.dumps(file.stem)}:{json.dumps(entry, separators=(',', ':'))}")
    source = "sizes of the tensors of transformers 5.23.0's classes (Apache-2.0; sizes are facts) on the meta device, "
    source += "made by lab/tensor_tables.py, 2026-11-21"
    text = ",\n".join(lines)
    target.write_text(f'{{"source":{json.dumps(source)},\n"model_types":{{\n{text}\n}}}}\n', encoding="utf-8")
    print(len(lines), "types")


# -- golden rows and the page ---------------------------------------------------------------------------------------

GOLDEN = ROOT / "tests/golden"
BLOCKS = "blocks of a sparse pattern are computed, not the square; what is executed depends on the implementation"
PLACES = "products with relative positions beside scores and values; what is executed depends on the implementation"
TOWERS = "the towers are not described yet; the text part is exact"
TABLE = "the class builds another list of layers than a reader of the paper would"
NOT_SETTLED: dict[str, dict[str, str]] = {
    "longt5": {"attention_flops": BLOCKS},
    "bigbird_pegasus": {"attention_flops": BLOCKS},
    "squeezebert": {"linear_flops": "the class runs its block-diagonal products as grouped convolutions"},
    "convbert": {"attention_flops": "the span-based convolution is a batched product in the class"},
    "mra": {"attention_flops": BLOCKS},
    "big_bird": {"attention_flops": BLOCKS},
    "longformer": {"attention_flops": BLOCKS, "linear_flops": BLOCKS},
    "led": {"attention_flops": BLOCKS, "linear_flops": BLOCKS},
    "deberta": {"attention_flops": PLACES, "linear_flops": PLACES},
    "deberta-v2": {"attention_flops": PLACES},
    "pegasus_x": {"attention_flops": BLOCKS, "linear_flops": BLOCKS},
    "diffllama": {"attention_flops": "two score matrices per head, of which the difference is taken"},
    "jetmoe": {"active_params": "the attention's experts are routed as well, and which count as idle is not settled"},
    "albert": {"layer_params_runs": "all layers hold one set of weights, which the class lists once"},
    "xlm": {"layer_params_runs": TABLE},
    "flaubert": {"layer_params_runs": TABLE},
    "zamba": {"*": "with tie_word_embeddings false the class unties the shared block as well"},
    "zamba2": {"*": "with tie_word_embeddings false the class unties the shared block as well"},
}
SOURCE = "transformers 5.23.0, torch 2.13.0, meta device, made by lab/transformers_truth.py, 2026-11-21"


def golden(folders: list[Path]) -> None:
    """Write rows and configs of everything that agrees and print the rest; several folders are merged."""
    rows, configs, left_out = [], [], []
    kept: dict[str, dict[str, Any]] = {}
    for file in sorted((f for folder in folders for f in folder.glob("*/*/truth.json")), key=lambda f: f.parts[-3:]):
        model_type, variant = file.parts[-3], file.parts[-2]
        truth = json.loads(file.read_text())
        config = smallest(file.parent, truth)
        try:
            wrong = mismatches(config, truth)
        except (InputError, AssertionError, KeyError, TypeError, ValueError) as error:
            left_out.append((model_type, variant, str(error)[:120]))
            if not on_purpose(error):
                class_entry(kept, model_type, truth)["differs"] |= dict.fromkeys(
                    COLUMNS, "some of its files are refused"
                )
            continue
        known = {c: r for c, r in reasons(model_type, config).items() if c in wrong}
        if set(wrong) - set(known) and read_model(config).interval_factor > 1:
            left_out.append((model_type, variant, "said to be inexact"))
            continue
        entry = class_entry(kept, model_type, truth)
        entry["differs"] |= {c: known.get(c, DIFFERS) for c in wrong}
        if set(wrong) - set(known):
            left_out.append((model_type, variant, ", ".join(sorted(set(wrong) - set(known)))))
            continue
        entry["parts"] |= nested_types(json.loads((file.parent / "config.json").read_text()))
        row = {column: truth.get(TRUTH_NAMES.get(column, column), "") for column in COLUMNS}
        row |= dict.fromkeys(known, "")
        if (ours := counted(config, 8))["params"] != ours["built_params"]:
            row["params"] = ours["params"]
        note = "; ".join(sorted(set(known.values())))
        rows.append(
            {"model_type": model_type, "variant": variant, "seq_len": truth.get("seq_len", ""), **row, "note": note}
        )
        configs.append({"model_type": model_type, "variant": variant, "config": config})
    write_golden(rows, configs)
    write_verified(kept)
    for out in left_out:
        print("left out", *out)
    print(len(rows), "rows,", len({r["model_type"] for r in rows}), "model types,", len(left_out), "left out")


DIFFERS = "a config among those compared differs"
VERIFIED = ROOT / "src/sartor/read/verified.json"


def on_purpose(error: Exception) -> bool:
    """Whether a class's defaults are refused because no published file has them: sizes that are null or contradict."""
    return isinstance(error, InputError) and (error.value is None or error.must.startswith("must divide"))


def class_entry(kept: dict[str, dict[str, Any]], model_type: str, truth: dict[str, Any]) -> dict[str, Any]:
    """The entry of one class of a model type."""
    fresh: dict[str, Any] = {"differs": {}, "parts": {}}
    return kept.setdefault(model_type, {}).setdefault(truth["model_class"], fresh)  # type: ignore[no-any-return]


def nested_types(config: dict[str, Any]) -> dict[str, None]:
    """Model types of the nested configs of a config."""
    inner = [v for v in config.values() if isinstance(v, dict)]
    own = {v["model_type"]: None for v in inner if isinstance(v.get("model_type"), str) and v["model_type"]}
    return own | {name: None for v in inner for name in nested_types(v)}


def write_verified(kept: dict[str, dict[str, Any]]) -> None:
    """Write the list that lets a reading count as exact: types with the classes compared, and types nested in them."""
    lines = []
    for model_type, classes in sorted(kept.items()):
        ordered = {name: {c: x["differs"][c] for c in COLUMNS if c in x["differs"]} for name, x in classes.items()}
        lines.append(f"{json.dumps(model_type)}:{json.dumps(ordered, separators=(',', ':'), sort_keys=True)}")
    exact = [x for classes in kept.values() for x in classes.values() if "params" not in x["differs"]]
    parts = sorted({part for x in exact for part in x["parts"]})
    head = f'"source":{json.dumps("compared with " + SOURCE)}'
    text = ",\n".join(lines)
    ignored = json.dumps(ignored_sizes())
    body = f'{{{head},\n"ignored":{ignored},\n"model_types":{{\n{text}\n}},\n"parts":{json.dumps(parts)}}}\n'
    VERIFIED.write_text(body, encoding="utf-8")


def ignored_sizes() -> dict[str, list[str]]:
    """Sizes of golden configs that their classes write but do not build from, by model type: the counts compared equal
    with these in the file."""
    packaged_json("verified.json")["ignored"] = {}
    ignored_fields.cache_clear()
    out: dict[str, set[str]] = {}
    with (GOLDEN / "conformance.csv").open(newline="") as file:
        settled = [bool(row["params"]) for row in csv.DictReader(file)]
    lines = (GOLDEN / "configs.jsonl").read_text().splitlines()
    for line, compared in zip(lines, settled, strict=True):
        config = json.loads(line)["config"]
        for field in read_model(dict(config)).unread_sizes if compared else ():
            *folders, name = field.partition("=")[0].split(".")
            inner = config
            for folder in folders:
                inner = inner[folder]
            part = part_name(inner.get("model_type", ""), config.get("model_type", ""), ".".join(folders))
            out.setdefault(part, set()).add(name)
    return {part: sorted(names) for part, names in sorted(out.items())}


def reasons(model_type: str, config: dict[str, Any]) -> dict[str, str]:
    """Columns that a config of this type does not determine, and why."""
    known = NOT_SETTLED.get(model_type, {})
    if "*" in known:
        untied = config.get("tie_word_embeddings") is False
        known = dict.fromkeys(("params", "text_params", "active_params"), known["*"]) if untied else {}
    reading = read_model(config)
    if any("left out" in because for because in reading.inexact_because):
        known = known | dict.fromkeys(("params", "active_params"), TOWERS)
    return known


def smallest(folder: Path, truth: dict[str, Any]) -> dict[str, Any]:
    """The smallest equivalent config: fields that differ from the class's defaults, and sizes that no file omits."""
    full = json.loads((folder / "config.json").read_text())
    sparse = json.loads((folder / "sparse.json").read_text())
    small = {k: v for k, v in full.items() if k in ESSENTIAL or k in ("architectures", "vocab_size")} | sparse
    two = len(full.get("id2label") or {}) == 2
    for name in ("transformers_version", "dtype", *(("id2label", "label2id") if two else ())):
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
    """The page and the table of every model type, from the reference configs and the golden rows."""
    by_type: dict[str, list[dict[str, str]]] = {}
    for row in csv.DictReader((GOLDEN / "conformance.csv").open()):
        by_type.setdefault(row["model_type"], []).append(row)
    write_table(by_type)
    published = published_rows(shared)
    (ROOT / "lab/notebook/conformance.md").write_text(page_text(by_type, published), encoding="utf-8")


def write_table(by_type: dict[str, list[dict[str, str]]]) -> None:
    """lab/tables/conformance.csv: a verdict per model type and column."""
    with (ROOT / "lab/tables/conformance.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["model_type", "configs", *COLUMNS, "note"])
        for model_type, group in sorted(by_type.items()):
            verdicts = [verdict_of(group, column) for column in COLUMNS]
            writer.writerow([model_type, len(group), *verdicts, note_of(group)])


def page_text(by_type: dict[str, list[dict[str, str]]], published: list[tuple[str, str, str]]) -> str:
    """The summary, and everything that is not exact, with reasons."""
    notes = {model_type: note_of(group) for model_type, group in sorted(by_type.items())}
    reasons: dict[str, list[str]] = {}
    for model_type, note in notes.items():
        if note:
            reasons.setdefault(note, []).append(f"`{model_type}`")
    exact = [name for name, _, verdict in published if verdict == "exact"]
    others = [f"- {name}: {verdict}" for name, _, verdict in published if verdict != "exact"]
    return PAGE.format(
        exact=len(exact),
        published=len(published),
        names=", ".join(exact),
        others="\n".join(others),
        types=len(by_type),
        configs=sum(map(len, by_type.values())),
        full=sum(not note for note in notes.values()),
        reasons="\n".join(f"- {', '.join(types)}: {note}" for note, types in reasons.items()),
    )


PAGE = """# Conformance: counts against the published classes

*Generated by `lab/conformance.py page`.*

Parameters (total, text part, per layer, active) and FLOPs (linear layers, attention over the full square) are compared
exactly with what the classes of transformers 5.23.0 build on the meta device. How sartor counts:
[counting](../../docs/concepts/counting.md).

## Published config.json files

{exact} of {published} are exact in every column: {names}.

The others:

{others}

## Model types

{configs} configurations (class defaults and variations) of {types} model types: {full} types are
exact in every column that can be compared. All verdicts:
[lab/tables/conformance.csv](../tables/conformance.csv). The exceptions:

{reasons}
"""


def note_of(group: list[dict[str, str]]) -> str:
    return "; ".join(sorted({row["note"] for row in group if row["note"]}))


def verdict_of(group: list[dict[str, str]], column: str) -> str:
    """Exact if every config has a true value, a dash if none has, else partly."""
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
        golden([Path(argument) for argument in arguments])
    elif command == "tables":
        tables(Path(arguments[0]), Path(arguments[1]))
    elif command == "page":
        page(Path(arguments[0]) if arguments else ROOT.parent / "shared/data/configs")
    else:
        sys.exit(f"unknown command {command}")
