"""``sartor operators``: a file of shapes, or one operator in words, priced as every other command prices them."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from records.made_tables import gemm_rows, write_csv, write_parquet
from sartor import api
from sartor.validate.untimed import kinds_of, priced_body

GEMM = {"dtype": "bf16", "m": 4096, "n": 4096, "k": 1024}
ATTENTION = {
    "dtype": "bf16",
    "phase": "prefill",
    "batch": 2,
    "heads": 32,
    "kv_heads": 8,
    "head_dim": 128,
    "seq_q": 2048,
    "seq_kv": 2048,
}
STREAM = {"dtype": "bf16", "op": "rmsnorm", "rows": 4096, "cols": 4096, "bytes": 67108864}
EXPERTS = {"dtype": "bf16", "num_tokens": 512, "hidden_size": 4096, "inter_size": 2048, "topk": 2, "num_experts": 8}
REDUCE = {"dtype": "bf16", "op": "all_reduce", "n_gpus": 8, "bytes": 1048576}
KINDS = {"gemm": GEMM, "attention": ATTENTION, "memory_bound": STREAM, "moe": EXPERTS, "collectives": REDUCE}
SECONDS = ("time_s", "low_s", "high_s")
KEYS = {
    *("row", "table", "gpu", "shape", *SECONDS, "compute_s", "memory_s", "network_s", "overhead_s", "flops"),
    *("bytes_moved", "achieved_flops_per_s", "achieved_bytes_per_s", "bound_by", "source"),
}
VARIED: list[dict[str, Any]] = [
    *({"table": "gemm", **GEMM, "m": m} for m in (1, 64, 4095, 8192)),
    *({"table": "attention", **ATTENTION, "batch": b, "phase": p} for b in (1, 16) for p in ("prefill", "encoder")),
    {"table": "attention", **ATTENTION, "phase": "decode", "seq_q": 1, "framework": "vllm"},
    {"table": "attention", **ATTENTION, "phase": "decode", "seq_q": 1, "framework": "sglang"},
    *({"table": "memory_bound", **STREAM, "op": op} for op in ("rmsnorm", "silu_and_mul")),
    *({"table": "moe", **EXPERTS, "distribution": word} for word in ("balanced", "power_law_1.2")),
    *({"table": "collectives", **REDUCE, "n_gpus": n, "system": "dgx-h100"} for n in (4, 8)),
    {"table": "collectives", **REDUCE, "n_gpus": 16, "gpus_per_node": 8, "system": "dgx-h100"},
]


def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """A CSV with the columns of all rows."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return write_csv(path, [{name: row.get(name, "") for name in names} for row in rows])


def in_words(columns: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in columns.items()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_one_row_equals_one_operator_in_words(sartor: Callable[..., Any], tmp_path: Path, kind: str) -> None:
    file = write(tmp_path / "one.csv", [KINDS[kind]])
    alone = sartor("operators", kind, *in_words(KINDS[kind]), "--gpu", "h100", "--json").body
    of_file = sartor("operators", file, "--gpu", "h100", "--json").body
    assert alone["operators"] == of_file["operators"]
    assert alone["schema"] == "sartor/operators/1"
    (entry,) = alone["operators"]
    assert set(entry) == KEYS
    assert 0 < entry["low_s"] <= entry["time_s"] <= entry["high_s"]
    assert entry["source"] in ("calibrated", "analytic", "assumed")
    assert entry["bound_by"] in ("compute", "memory", "network", "overhead")
    assert (alone["file"], of_file["file"]) == (None, str(file))


@pytest.mark.parametrize(
    ("words", "implied"),
    [
        ({"phase": "prefill", "seq_kv": 64}, {"batch": 1, "kv_heads": 4, "seq_q": 64}),
        ({"phase": "encoder", "seq_q": 64, "kv_heads": 2}, {"batch": 1, "seq_kv": 64}),
        ({"phase": "decode", "seq_kv": 64, "batch": 8}, {"kv_heads": 4, "seq_q": 1}),
    ],
)
def test_attention_asks_for_no_column_that_the_others_imply(
    sartor: Callable[..., Any], words: dict[str, Any], implied: dict[str, Any]
) -> None:
    stated = {"heads": 4, "head_dim": 64, **words}
    short = sartor("operators", "attention", *in_words(stated), "--json").body
    whole = sartor("operators", "attention", *in_words({**stated, **implied}), "--json").body
    assert {f"{name}={value} (default)" for name, value in implied.items()} <= {*short["assumptions"]}
    assert short["operators"][0]["time_s"] == whole["operators"][0]["time_s"]


def test_a_row_costs_the_same_among_others_alone_and_in_any_order(sartor: Callable[..., Any], tmp_path: Path) -> None:
    def priced(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
        body = sartor("operators", write(tmp_path / name, rows), "--gpu", "h100", "--json").body
        assert body["refused"] == []
        return [{key: value for key, value in each.items() if key != "row"} for each in body["operators"]]

    whole, order = priced(VARIED, "all.csv"), list(range(len(VARIED)))
    random.Random(1).shuffle(order)
    assert priced([VARIED[i] for i in order], "shuffled.csv") == [whole[i] for i in order]
    for i in (0, 2, 4, 8, 12, 14, 16):
        assert priced([VARIED[i]], "one.csv") == [whole[i]]
    assert priced([VARIED[0], VARIED[0]], "twice.csv") == [whole[0], whole[0]]


@pytest.mark.parametrize(
    ("gpu", "more", "options"),
    [
        ("h100", {"dtype": "bf16"}, ()),
        ("h100", {"dtype": "fp8", "batch": 3}, ()),
        ("h100", {"dtype": "fp8"}, ("--kernels", "trtllm")),
        ("h200", {"dtype": "fp32"}, ("--clock", "sustained")),
        ("a100", {"dtype": "fp16", "m": 4095, "layout": "NT"}, ()),
        ("l40s", {"dtype": "int4_wo", "m": 3}, ()),
        ("mi355x", {"dtype": "bf16"}, ("--kernels", "aiter_asm")),
        ("tpu_v4_like", {"dtype": "bf16"}, ()),
    ],
)
def test_a_gemm_costs_what_sartor_gemm_says(sartor: Callable[..., Any], gpu: str, more: Any, options: Any) -> None:
    row = {**GEMM, **more}
    one = sartor("operators", "gemm", *in_words(row), "--gpu", gpu, *options, "--json").body["operators"][0]
    flags = [word for name in ("dtype", "layout", "batch") if name in row for word in (f"--{name}", row[name])]
    gemm = sartor("gemm", row["m"], row["n"], row["k"], "--gpu", gpu, *flags, *options, "--json").body
    for key in (*SECONDS, "bound_by", "source", "flops", "bytes_moved", "achieved_flops_per_s"):
        assert one[key] == gemm[key], key


def test_a_calibration_of_ones_own_prices_rows_of_its_device_alone(sartor: Callable[..., Any], tmp_path: Path) -> None:
    shapes = [(m, n, 1024) for m in (16, 128, 512, 2048, 8192) for n in (1024, 4096, 8192)]
    records, own = write_csv(tmp_path / "records.csv", gemm_rows(1.2, shapes=shapes)), tmp_path / "own.toml"
    assert sartor("calibrate", records, "--out", own).code == 0
    file = write(tmp_path / "x.csv", [{"gpu": gpu, **GEMM} for gpu in ("a100", "h100")])
    rows = sartor("operators", file, "--calibration", own, "--json").body["operators"]
    sizes = [GEMM[name] for name in "mnk"]
    gemm = sartor("gemm", *sizes, "--gpu", "a100", "--dtype", "bf16", "--calibration", own, "--json").body
    assert rows[0]["time_s"] == gemm["time_s"]
    assert [rows[1]] == sartor("operators", file, "--json").body["operators"][1:]


@pytest.mark.parametrize(("kind", "size"), [("all_reduce", 1e5), ("all_gather", 1e9), ("all_to_all", 1e7)])
def test_a_collective_costs_what_sartor_collective_says(sartor: Callable[..., Any], kind: str, size: float) -> None:
    row = {**REDUCE, "op": kind, "bytes": size}
    one = sartor("operators", "collectives", *in_words(row), "--gpu", "h200", "--json").body["operators"][0]
    same = sartor("collective", kind, size, 8, "--gpu", "h200", "--alone", "--json").body
    for key, of in (*((key, key) for key in (*SECONDS, "source")), ("achieved_bytes_per_s", "busbw_bytes_per_s")):
        assert one[key] == pytest.approx(same[of]), key


def test_a_pass_of_a_model_pays_the_same_for_attention_and_norms(sartor: Callable[..., Any]) -> None:
    words = ("llama-3-8b", "--gpu", "h100", "--phase", "prefill", "--microbatch-size", 2, "--seq-len", 2048)  # in vLLM
    of_model = {each["name"]: each for each in sartor("estimate", *words, "--json").body["operators"]}
    for kind, row, name in (("attention", ATTENTION, "attention"), ("memory_bound", STREAM, "norm")):
        words = (*in_words(row), "--gpu", "h100", "--clock", "boost", "--kernels", "vllm", "--json")
        assert sartor("operators", kind, *words).body["operators"][0]["time_s"] == of_model[name]["time_s"]


def test_what_was_predicted_is_what_validate_compares(sartor: Callable[..., Any], tmp_path: Path) -> None:
    rows = gemm_rows()
    body = sartor("operators", write_parquet(tmp_path / "x.parquet", rows), "--json").body
    assert [each["time_s"] * 1e6 for each in body["operators"]] == pytest.approx([row["latency_us"] for row in rows])


def test_more_experts_of_a_framework_are_its_own_kernels(sartor: Callable[..., Any]) -> None:
    words = ("operators", "moe", *in_words(EXPERTS), "--gpu", "h100", "--json")
    named = sartor(*words[:2], *in_words({**EXPERTS, "kernel": "sglang_fused_moe_triton"}), *words[-3:]).body
    option, unknown = sartor(*words, "--kernels", "sglang_triton").body, sartor(*words).body
    (one,), (same,), (wide,) = (body["operators"] for body in (named, option, unknown))
    assert one["time_s"] == same["time_s"]
    assert one["high_s"] / one["low_s"] < wide["high_s"] / wide["low_s"]
    assert any("unknown framework" in said for said in unknown["assumptions"])
    assert not any("unknown framework" in said for said in named["assumptions"])


def test_the_option_says_which_gpu_prices_the_rows(sartor: Callable[..., Any], tmp_path: Path) -> None:
    with_gpu = write(tmp_path / "with.csv", [{"gpu": "a100", **GEMM}, {"gpu": "H200", **GEMM}])
    without = write(tmp_path / "without.csv", [GEMM])
    own = sartor("operators", with_gpu, "--json").body
    assert [each["gpu"] for each in own["operators"]] == ["a100_sxm", "h200_sxm"]
    other = sartor("operators", with_gpu, "--gpu", "h100", "--json").body
    assert {each["gpu"] for each in other["operators"]} == {"h100_sxm"}
    assert (
        "gpu=h100_sxm (--gpu) prices every row, in place of a100, H200 in the file's gpu column" in other["assumptions"]
    )
    filled = sartor("operators", without, "--gpu", "h100", "--json").body
    assert "gpu=h100_sxm (--gpu) prices every row: the file has no gpu column" in filled["assumptions"]
    assert filled["operators"][0]["time_s"] == other["operators"][0]["time_s"]
    no_type = write(tmp_path / "sizes.csv", [{name: GEMM[name] for name in "mnk"}])
    assert "dtype=bf16 (default)" in sartor("operators", no_type, "--gpu", "h100", "--json").body["assumptions"]


ODD = [
    {"note": 'said "so", twice', "code": "007", **GEMM},
    {"note": "", "code": "1e3", **GEMM, "m": -5},
    {"note": "half", "code": "", **GEMM, "n": 1.5},
    {"note": "ü", "code": "x", **GEMM, "dtype": "bf17"},
    {"note": "last", "code": "x", **GEMM, "k": 64},
]


def test_a_written_file_has_its_own_cells_and_the_predicted_ones(sartor: Callable[..., Any], tmp_path: Path) -> None:
    names, file, to = list(ODD[0]), tmp_path / "in.csv", tmp_path / "out.csv"
    with file.open("w", newline="", encoding="utf-8") as text:
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(ODD)
    ran = sartor("operators", file, "--gpu", "h100", "--write", to, "--json")
    with to.open(newline="", encoding="utf-8") as text:
        rows = list(csv.DictReader(text))
    assert [[row[name] for name in names] for row in rows] == [[str(row[name]) for name in names] for row in ODD]
    first, priced = rows[0], ran.body["operators"]
    assert float(first["predicted_us"]) == pytest.approx(priced[0]["time_s"] * 1e6, rel=1e-5)
    assert float(first["predicted_tflops"]) == pytest.approx(priced[0]["achieved_flops_per_s"] / 1e12, rel=1e-5)
    assert (first["predicted_gpu"], first["predicted_source"], first["predicted_reason"]) == (
        "h100_sxm",
        "calibrated",
        "",
    )
    assert [row["predicted_us"] == "" for row in rows] == [False, True, True, True, False]
    assert [bool(row["predicted_reason"]) for row in rows] == [False, True, True, True, False]
    again, parquet = tmp_path / "again.csv", tmp_path / "out.parquet"
    assert sartor("operators", to, "--gpu", "h100", "--write", again).code == 0
    assert again.read_bytes() == to.read_bytes()
    assert sartor("operators", to, "--gpu", "h100", "--write", parquet).code == 0
    assert pq.read_table(parquet)["predicted_us"].to_pylist()[0] == pytest.approx(float(first["predicted_us"]))
    assert sartor("operators", parquet, "--gpu", "h100", "--write", again).code == 0
    assert again.read_bytes() == to.read_bytes()


def test_rows_without_a_price_are_named_with_the_reason(sartor: Callable[..., Any], tmp_path: Path) -> None:
    rows = [
        *({name: value for name, value in row.items() if name != "note"} for row in ODD),
        {**GEMM, "dtype": "nvfp4"},
        *({"table": word, **GEMM} for word in ("layer_and_model", "gem")),
        {"table": "attention", **ATTENTION, "phase": "prefil"},
        {"table": "attention", **ATTENTION, "kv_heads": 64},
        {"table": "attention", **ATTENTION, "seq_q": 4096},
    ]
    file = write(tmp_path / "x.csv", [{"table": "gemm", **row} for row in rows])
    body = sartor("operators", file, "--gpu", "h100", "--json").body
    assert body["expressed"] == len(body["operators"]) == 2
    assert [each["row"] for each in body["operators"]] == [1, 5]
    found = {each["rows"][0]: each["reason"] for each in body["refused"]}
    assert sum(each["count"] for each in body["refused"]) == body["num_rows"] - 2
    for row, words in {
        2: "m is not a whole number from 1 to 2^40",
        3: "n is not a whole number from 1 to 2^40",
        4: "dtype bf17: not an element type; nearest: bf16",
        6: "dtype nvfp4: h100_sxm has no matrix rate for it",
        7: "whole models are priced by `sartor estimate`",
        8: "must be gemm, attention, memory_bound, moe, collectives; nearest: gemm",
        9: "phase prefil: must be context, generation or encoder",
        10: "kv_heads above heads",
        11: "seq_kv below seq_q",
    }.items():
        assert words in found[row]
    printed = sartor("operators", file, "--gpu", "h100").out
    assert "2 of 11 operators priced" in printed
    assert "row 9: phase prefil: must be context, generation or encoder" in printed


def test_the_terminal_says_equal_columns_once_and_cuts_long_files(sartor: Callable[..., Any], tmp_path: Path) -> None:
    file = write(tmp_path / "x.csv", [{**GEMM, "m": m} for m in range(1, 61)])
    out = sartor("operators", file, "--gpu", "h100").out
    assert "gemm: h100_sxm, bf16, n 4096, k 1024" in out
    assert "and 20 more" in out
    assert max(map(len, out.splitlines())) <= 100
    varied = sartor("operators", write(tmp_path / "y.csv", VARIED), "--gpu", "h100").out
    assert max(map(len, varied.splitlines())) <= 100


def test_a_measured_column_is_not_read(sartor: Callable[..., Any], tmp_path: Path) -> None:
    plain, timed = write(tmp_path / "a.csv", [GEMM]), write(tmp_path / "b.csv", [{**GEMM, "latency_us": "n/a"}])
    one, other = (sartor("operators", file, "--gpu", "h100", "--json").body["operators"] for file in (plain, timed))
    assert one == other


BAD = {
    "a missing column": ("{no_k}", ["shapes=no_k.csv", "gemm table must have k"]),
    "no device": ("{no_gpu}", ["shapes=no_gpu.csv", "gpu column", "--gpu h100_sxm"]),
    "an empty file": ("{empty}", ["shapes=empty.csv", "first line"]),
    "a header alone": ("{header} --gpu h100", ["shapes=header.csv", "must have a row"]),
    "a cut line": ("{cut} --gpu h100", ["shapes=cut.csv", "as many fields as the header"]),
    "one name twice": ("{twice} --gpu h100", ["shapes=twice.csv", "only one column called m"]),
    "only rows that cannot be": ("{unknown}", ["none of its 1 rows", "gpu h1000: not in the catalogue", "h100_sxm"]),
    "no such file": ("nowhere.csv --gpu h100", ["shapes=nowhere.csv", "exists"]),
    "no such kind": ("gem m=5", ["shapes=gem", "nearest: gemm"]),
    "columns beside a file": ("{no_gpu} m=4 --gpu h100", ["columns=m=4", "a file has its own"]),
    "a column without a value": ("gemm m", ["columns=m", "must read COLUMN=VALUE"]),
    "no such column": ("gemm m=1 n=1 k=1 bath=2", ["bath=2", "not a column of a gemm table", "batch"]),
    "missing columns": ("gemm m=1", ["gemm: lacks n, k; add n=... k=..."]),
    "a negative size": ("gemm m=-5 n=3 k=4", ["m=-5: must be a whole number from 1 to 2^40; nearest: 1"]),
    "a word for a size": ("gemm m=big n=3 k=4", ["m=big: must be a whole number"]),
    "sizes that 64 bits do not count": (
        f"attention {' '.join(in_words({**ATTENTION, 'batch': 2**40, 'heads': 2**40}))}",
        ["the product of batch, heads, head_dim, seq_q, seq_kv is above 2^61"],
    ),
    "a size beyond all": ("gemm m=1e300 n=3 k=4", ["m=1e300"]),
    "an unknown phase": ("attention {attention}", ["phase=prefil: must be context, generation or encoder"]),
    "more heads of keys": ("attention {heads}", ["kv_heads=64: is above heads; nearest: 32"]),
    "a group of one": ("collectives op=all_reduce bytes=1e6 n_gpus=1", ["n_gpus=1", "nearest: 2"]),
    "a type without units": ("gemm m=1 n=1 k=1 dtype=nvfp4", ["dtype=nvfp4", "h100_sxm has no matrix rate"]),
    "an unknown type of a stream": (
        "memory_bound op=rmsnorm rows=8 cols=8 bytes=999 dtype=bf61",
        ["dtype=bf61", "bf16"],
    ),
    "a kernel like no other": ("memory_bound op=xyz rows=8 cols=8 bytes=999", ["op=xyz", "known: rmsnorm, layernorm"]),
    "an unknown kernel": ("memory_bound op=rmsnrm rows=8 cols=8 bytes=999", ["op=rmsnrm", "rmsnorm"]),
    "an unknown gpu": ("gemm m=1 n=1 k=1 --gpu h1000", ["--gpu=h1000", "h100_sxm"]),
    "an unknown gpu in words": ("gemm m=1 n=1 k=1 gpu=h1000", ["gpu=h1000", "h100_sxm"]),
    "two gpus": ("gemm m=1 n=1 k=1 gpu=h100 --gpu a100", ["columns=gpu=h100", "--gpu"]),
    "unknown kernels": ("gemm m=1 n=1 k=1 --kernels vlm", ["--kernels=vlm", "vllm"]),
    "an unknown clock": ("gemm m=1 n=1 k=1 --clock warp", ["--clock=warp", "boost, sustained"]),
    "a format that is none": ("gemm m=1 n=1 k=1 --write x.txt", ["--write=x.txt", ".csv or .parquet"]),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_priced_is_said_in_one_sentence(sartor: Callable[..., Any], tmp_path: Path, case: str) -> None:
    texts = {
        "no_k": "gpu,dtype,m,n\nh100,bf16,1,2\n",
        "no_gpu": "dtype,m,n,k\nbf16,1,2,3\n",
        "empty": "",
        "header": "dtype,m,n,k\n",
        "cut": "dtype,m,n,k\nbf16,1,2,3\nbf16,1,2\n",
        "twice": "dtype,m,m,n,k\nbf16,1,2,3,4\n",
        "unknown": "gpu,dtype,m,n,k\nh1000,bf16,1,2,3\n",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.csv").write_text(text)
    given = {name: tmp_path / f"{name}.csv" for name in texts}
    words, must_name = BAD[case]
    given |= {"attention": " ".join(in_words({**ATTENTION, "phase": "prefil"}))}
    given |= {"heads": " ".join(in_words({**ATTENTION, "kv_heads": 64}))}
    ran = sartor("operators", *words.format(**given).split(), "--json")
    for name in must_name:
        assert name in ran.refusal()


def test_python_asks_the_same_question(sartor: Callable[..., Any], tmp_path: Path) -> None:
    file = write(tmp_path / "rows.csv", VARIED)
    said = sartor("operators", str(file), "--gpu", "h100", "--json").body
    found = api.operators(file, gpu="h100")
    assert [found.rows.numbers["time_s"][row["row"] - 1] for row in said["operators"]] == [
        row["time_s"] for row in said["operators"]
    ]
    assert list(found.assumptions) == said["assumptions"]
    one = api.operators("attention", {**ATTENTION, "causal": False}, gpu="h100")
    assert one.rows.texts["source"].tolist() == ["calibrated"]
    assert one.rows.numbers["time_s"][0] > api.operators("attention", ATTENTION, gpu="h100").rows.numbers["time_s"][0]


def test_the_first_rows_of_every_kind_are_those_of_all(tmp_path: Path) -> None:
    """The terminal shows some rows, and needs no entry of the million others."""
    found = api.operators(write(tmp_path / "rows.csv", VARIED), gpu="h100")
    whole, some = priced_body(found)["operators"], priced_body(found, 2)["operators"]
    for kind in KINDS:
        assert [row for row in some if row["table"] == kind] == [row for row in whole if row["table"] == kind][:2]
    for kind in kinds_of(found):
        rows = [{**row["shape"], "gpu": row["gpu"]} for row in whole if row["table"] == kind["table"]]
        assert kind["count"] == len(rows)
        assert kind["columns"].keys() == {name for row in rows for name in row}
        for name, value in kind["columns"].items():
            distinct = {row.get(name) for row in rows}
            assert value is None if len(distinct) > 1 else {value} == distinct
