"""Over HTTP the same answers and the same sentences as on the command line."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sartor import api, cli
from sartor.answers.design import STEP_TIME
from sartor.answers.plan import MEMORY, PARTS
from sartor.report.charts import drawn
from sartor.report.design_words import AREA_WORDS, POWER_WORDS
from sartor.report.plan_points import plan_points
from sartor.report.points import roofline_points
from sartor.web.openapi import EXAMPLES
from sartor.web.routes import ROUTES, route_named


def commanded(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = cli.run([str(word) for word in words])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_every_example_of_the_api_page_is_answered_with_its_keys(server: Any, name: str) -> None:
    route = route_named(name)
    reply = server.post(route.path, EXAMPLES[name])
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith(route.media.partition(";")[0])
    if route.schema:
        body = reply.json()
        assert list(body)[:2] == ["schema", "version"]
        assert body["schema"] == f"sartor/{route.schema}/1"
        assert set(route.keys) <= set(body)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/api/estimate", {"model": "gpt2-xl", "gpu": "a100"}, ["estimate", "gpt2-xl", "--gpu", "a100"]),
        (
            "/api/serving",
            {"model": "llama-3.1-8b", "gpu": "h100", "concurrency": [1, 8], "output_len": 300},
            ["serving", "llama-3.1-8b", "--gpu", "h100", "--concurrency", "1,8", "--output-len", 300],
        ),
        (
            "/api/serving",
            {"model": "llama-3.1-70b", "gpu": "h100", "tp": 2, "pp": 2},
            ["serving", "llama-3.1-70b", "--gpu", "h100", "--tp", 2, "--pp", 2],
        ),
        (
            "/api/deploy",
            {"model": "llama-3.1-8b", "gpus": ["h100", "a100"], "tpot_s": 0.03, "users": 90, "pools": False},
            ["deploy", "llama-3.1-8b", "--gpu", "h100,a100", "--tpot", 0.03, "--users", 90, "--no-pools"],
        ),
        (
            "/api/deploy",
            {
                "model": "llama-3.1-8b",
                "gpus": ["h100"],
                "fix": {"tp": 1},
                "why_not": {"tp": 2},
                "most_usd_per_hour": 30,
            },
            [
                "deploy",
                "llama-3.1-8b",
                "--gpu",
                "h100",
                "--fix",
                "tp=1",
                "--why-not",
                "tp=2",
                "--most-usd-per-hour",
                30,
            ],
        ),
        ("/api/gemm", {"m": 2304, "n": 1600, "k": 4096}, ["gemm", 2304, 1600, 4096]),
        ("/api/lint", {"model": "gpt2-xl", "tp": 2}, ["lint", "gpt2-xl", "--tp", 2, "--fail-on", "never"]),
        ("/api/advise", {"model": "gpt2-xl", "top": 2}, ["advise", "gpt2-xl", "--top", 2]),
    ],
)
def test_an_answer_is_the_command_lines_byte_for_byte(
    server: Any, capsys: pytest.CaptureFixture[str], path: str, body: dict[str, Any], words: list[object]
) -> None:
    code, out, _ = commanded(capsys, *words, "--json")
    assert code == 0
    assert server.post(path, body).text == out


def test_recorded_requests_and_quantiles_are_those_of_the_command_line(
    server: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = "time,in,out\n" + "".join(f"{i / 2},{500 + i},100\n" for i in range(50))
    (tmp_path / "traffic.csv").write_text(lines)
    asked = {"model": "qwen3-8b", "gpus": ["h100"], "pools": False, "most_devices": 2}
    words = ["deploy", "qwen3-8b", "--no-pools", "--most-devices", 2, "--json"]
    lengths = {"input_len": "p50=800,p95=3000", "output_len": {"50": 100, "90": 200}}
    for body, more in (
        ({"traffic": lines}, ["--traffic", str(tmp_path / "traffic.csv")]),
        (lengths, ["--input-len", "p50=800,p95=3000", "--output-len", "p50=100,p90=200"]),
    ):
        there = json.loads(commanded(capsys, *words, *more)[1])
        here = server.post("/api/deploy", {**asked, **body}).json()
        assert here["best"] == there["best"]
    refused = server.post("/api/deploy", {**asked, "traffic": str(tmp_path / "traffic.csv")})
    assert refused.status_code == 422  # a text, never the server's file
    assert refused.json()["error"]["field"] == "traffic"


def test_a_run_is_diagnosed_as_on_the_command_line(
    server: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = EXAMPLES["diagnose"]
    log = tmp_path / "train.log"
    log.write_bytes(base64.b64decode(asked["run"]))
    plan = ["--num-devices", 8, "--global-batch-size", 8, "--seq-len", 8192]
    _, out, _ = commanded(capsys, "diagnose", log, "--model", asked["model"], "--gpu", "h100", *plan, "--json")
    here, there = server.post("/api/diagnose", asked).json(), json.loads(out)
    there["log"]["path"] = "train.log"
    assert {key: value for key, value in here.items() if key not in ("says", "figures")} == there
    assert here["says"]["lines"][0].startswith("Steady at ")
    assert here["says"]["lines"][2].startswith("You reach ")
    assert here["figures"]["fall"]["title"].startswith("From the ideal step")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"run": "%%%"}, "in base64"),
        ({"run": "aGVsbG8="}, "train.log"),
        ({"run": base64.b64encode(gzip.compress(b" " * 100_000_001, 1)).decode()}, "more than 100000000 bytes"),
        ({"run": "aGVsbG8=", "file": "a.nsys-rep"}, "nsys export --type sqlite"),
        ({"cluster": "../../etc/passwd"}, "no file is read by its path"),
        ({"fix": {"tp": None}}, "must be a number or a word"),
    ],
)
def test_a_run_that_cannot_be_read_is_refused_by_its_own_name(
    server: Any, change: dict[str, Any], sentence: str
) -> None:
    reply = server.post("/api/diagnose", {**EXAMPLES["diagnose"], **change})
    assert reply.status_code == 422
    assert sentence in reply.json()["error"]["message"]
    assert "/tmp" not in reply.text


def test_a_plan_is_the_command_lines_but_for_the_seconds_it_took(
    server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"model": "llama-3.1-8b", "num_devices": 16, "global_batch_size": 32, "tokens": "1T", "price": 2.0}
    words = ["plan", "llama-3.1-8b", "--num-devices", 16, "--global-batch-size", 32, "--price", 2, "--json"]
    _, out, _ = commanded(capsys, *words)
    here, there = server.post("/api/plan", body).json(), json.loads(out)
    for answer in (here, there):
        answer.pop("evaluated_per_s")
    assert here == there


XL = {"model": "gpt2-xl"}
JOB = {**XL, "global_batch_size": 8, "num_devices": 16}
PLAN = "plan gpt2-xl --global-batch-size 8 --num-devices 16"
REFUSED: list[tuple[str, dict[str, Any] | None, str]] = [
    ("estimate", {"model": "gpt9"}, "estimate gpt9"),
    ("estimate", {**XL, "gpu": "h1000"}, "estimate gpt2-xl --gpu h1000"),
    ("estimate", {**XL, "seq_len": 0}, "estimate gpt2-xl --seq-len 0"),
    ("estimate", {**XL, "seq_len": -5}, "estimate gpt2-xl --seq-len -5"),
    ("estimate", {**XL, "phase": "sleep"}, "estimate gpt2-xl --phase sleep"),
    ("estimate", {**XL, "gpu": "a100", "dtype": "fp8"}, "estimate gpt2-xl --gpu a100 --dtype fp8"),
    ("estimate", {**XL, "set": {"num_heads": 30}}, "estimate gpt2-xl --set num_heads=30"),
    ("estimate", {**XL, "set": {"heads": 3}}, "estimate gpt2-xl --set heads=3"),
    ("estimate", {**XL, "set": {"num_heads": "many"}}, "estimate gpt2-xl --set num_heads=many"),
    ("estimate", {"model": "bert-base", "phase": "decode"}, "estimate bert-base --phase decode"),
    ("estimate", {**XL, "tp": 0}, "estimate gpt2-xl --tp 0"),
    ("lint", {**XL, "allow": ["ragged"]}, "lint gpt2-xl --allow ragged"),
    ("advise", {**XL, "freeze": ["heads"]}, "advise gpt2-xl --freeze heads"),
    ("advise", {**XL, "params_tolerance": -1}, "advise gpt2-xl --params-tolerance -1"),
    ("advise", {**XL, "objective": "sleep"}, "advise gpt2-xl --objective sleep"),
    ("gemm", {"m": 0, "n": 1, "k": 1}, "gemm 0 1 1"),
    ("gemm", {"m": 8, "n": 8, "k": 8, "layout": "TT"}, "gemm 8 8 8 --layout TT"),
    ("plan", {**JOB, "fix": {"tp": 6}}, f"{PLAN} --fix tp=6"),
    ("plan", {**JOB, "fix": {"teepee": 6}}, f"{PLAN} --fix teepee=6"),
    ("plan", {**JOB, "cluster": "dgx-9"}, f"{PLAN} --cluster dgx-9"),
    ("plan", {**JOB, "tokens": "-1"}, f"{PLAN} --tokens -1"),
    ("plan", {**JOB, "framework": "tensorflow"}, f"{PLAN} --framework tensorflow"),
    ("plan", {**JOB, "routing_skew": 0.5}, f"{PLAN} --routing-skew 0.5"),
    ("catalog/nuts", None, "catalog nuts"),
    ("catalog/gpus/h1000", None, "catalog gpus h1000"),
]


@pytest.mark.parametrize(("path", "body", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_what_the_command_line_refuses_is_refused_with_the_very_sentence(
    server: Any, capsys: pytest.CaptureFixture[str], path: str, body: dict[str, Any] | None, words: str
) -> None:
    code, _, err = commanded(capsys, *words.split())
    assert code == 2
    reply = server.get(f"/api/{path}") if body is None else server.post(f"/api/{path}", body)
    assert reply.status_code == 422, reply.text
    error = reply.json()["error"]
    said, plain = (re.sub(r"--([a-z][a-z-]*)", _argument, text) for text in (err.strip(), error["message"]))
    said = said.replace("missing option", "missing argument")
    assert said == f"sartor: {plain}"
    assert error["field"]


def _argument(flag: re.Match[str]) -> str:
    """The name that the page and Python give an option of the command line."""
    return flag[1].replace("-", "_")


@pytest.mark.parametrize(
    "damage", ["{", "[]", "null", "", '{"a": NaN}', '{"a": 1, "a": 2}', "{" * 200, '{"model_type": 5}', "<html>"]
)
def test_a_config_that_is_damaged_is_refused_as_the_file_would_be(
    server: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)  # a long path would be shortened in the sentence
    Path("config.json").write_text(damage)
    code, _, err = commanded(capsys, "estimate", "config.json")
    assert code == 2
    reply = server.post("/api/estimate", {"config": damage})
    assert reply.status_code == 422
    said = reply.json()["error"]["message"]
    assert said == err.strip().removeprefix("sartor: ")


def test_a_config_is_the_file_it_would_be(server: Any, capsys: pytest.CaptureFixture[str], repo_dir: Path) -> None:
    path = repo_dir / "examples" / "pythia-2.8b" / "config.json"
    _, out, _ = commanded(capsys, "estimate", path, "--gpu", "a100", "--json")
    said = {"gpu": "a100", "name": "pythia-2.8b"}
    as_text = server.post("/api/estimate", {**said, "config": path.read_text()})
    as_object = server.post("/api/estimate", {**said, "config": json.loads(path.read_text())})
    assert as_text.text == as_object.text == out


@pytest.mark.parametrize("field", ["gpu", "model", "cluster"])
@pytest.mark.parametrize("name", ["/etc/passwd", "../x.toml", "x.toml", "a\\b", "/etc/passwd\x00", "org/name", "~/x"])
def test_no_name_is_ever_read_as_a_path(server: Any, field: str, name: str) -> None:
    body = {"model": "gpt2-xl", "global_batch_size": 8, "num_devices": 8, field: name}
    path = "/api/plan" if field == "cluster" else "/api/estimate"
    if field != "cluster":
        body = {key: value for key, value in body.items() if key in ("model", "gpu")}
    reply = server.post(path, body)
    assert reply.status_code == 422
    assert "no file is read" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {"model": {"a": 1}},
        {"model": ["gpt2-xl"]},
        {"model": True},
        {"model": "gpt2-xl", "gpu": 5},
        {"model": "gpt2-xl", "phase": {}},
        {"model": "gpt2-xl", "dtype": []},
        {"model": "gpt2-xl", "set": [1]},
        {"model": "gpt2-xl", "set": {"num_heads": [20]}},
        {"model": "gpt2-xl", "set": {"num_heads": {"a": 1}}},
        {"model": "gpt2-xl", "set": {"": ""}},
        {"model": "gpt2-xl", "seq_len": 1e3},
        {"model": "gpt2-xl", "seq_len": 2**70},
        {"model": "gpt2-xl", "seq_len": "2048"},
        {"model": "gpt2-xl", "tp": True},
        {"model": "gpt2-xl", "config": {}},
        {"config": 5},
        {},
    ],
    ids=str,
)
def test_values_of_the_wrong_kind_are_sentences_about_their_field(server: Any, body: dict[str, Any]) -> None:
    for path in ("/api/estimate", "/api/shape", "/api/lint"):
        reply = server.post(path, body)
        assert reply.status_code == 422, (path, reply.text)
        assert reply.json()["error"]["field"]


@pytest.mark.parametrize("path", ["/api/shape", "/api/estimate", "/api/lint", "/api/sweep"])
@pytest.mark.parametrize(
    "words",
    [
        {"set": {"num_layers": 100000, "hidden_size": 2**24, "num_heads": 128}},
        {"microbatch_size": 2**40, "seq_len": 2**40},
        {"tp": 2**40},
    ],
    ids=str,
)
def test_absurd_sizes_are_answered_or_refused_quickly(server: Any, path: str, words: dict[str, Any]) -> None:
    more = {"field": "vocab_size"} if path == "/api/sweep" else {}
    reply = server.post(path, {"model": "gpt2-xl", **words, **more})
    assert reply.status_code in (200, 422), reply.text
    if reply.status_code == 422:
        assert "takes longer" not in reply.json()["error"]["message"]


def test_unknown_fields_are_refused_with_the_nearest(server: Any) -> None:
    reply = server.post("/api/estimate", {"model": "gpt2-xl", "seqlen": 5})
    assert reply.status_code == 422
    assert reply.json()["error"]["nearest"].startswith("seq_len")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"m": "4096"}, 'm="4096" (a string): must be a whole number; nearest: 4096 without quotes'),
        ({"m": 1e300}, "m=1e+300: must be a whole number; nearest: 1099511627776"),
        ({"m": -4.2}, "m=-4.2: must be a whole number; nearest: 1"),
        ({"k": None}, "missing argument k: must be given, for example 4096"),
        ({"kernels": "trtlm"}, "must be a framework or library whose kernels were measured on h100_sxm"),
    ],
)
def test_a_wrong_size_is_shown_as_sent_with_a_value_near_it(server: Any, body: dict[str, Any], message: str) -> None:
    reply = server.post("/api/gemm", {"m": 8, "n": 8, "k": 8, **body})
    assert reply.status_code == 422
    assert message in reply.json()["error"]["message"]


def test_changes_are_written_into_the_files_own_keys_and_read_back(server: Any, pythia: dict[str, Any]) -> None:
    reply = server.post("/api/config", {"config": pythia, "set": {"num_heads": 20, "num_layers": 30}})
    assert reply.status_code == 200, reply.text
    changed = reply.json()
    assert changed["num_attention_heads"] == 20
    assert changed["num_hidden_layers"] == 30
    assert {key for key in changed if changed[key] != pythia.get(key)} == {"num_attention_heads", "num_hidden_layers"}


def test_a_width_that_the_file_leaves_to_its_class_is_named_under_the_key_of_the_class(server: Any) -> None:
    """GPT-2's n_inner is null where it is four times the hidden size; intermediate_size is not a key of its own."""
    config = {"model_type": "gpt2", "n_embd": 1600, "n_head": 25, "n_layer": 48, "vocab_size": 50257, "n_inner": None}
    sets = {"hidden_size": 1536, "num_heads": 24, "num_kv_heads": 24, "ffn_hidden_size": 6976}
    changed = server.post("/api/config", {"config": config, "set": sets}).json()
    assert (changed["n_embd"], changed["n_head"], changed["n_inner"]) == (1536, 24, 6976)
    assert "intermediate_size" not in changed


def test_latent_attention_takes_the_heads_that_follow_and_no_others(server: Any) -> None:
    sets = {"num_heads": 96, "num_kv_heads": 96}
    config = server.post("/api/config", {"model": "deepseek-v2", "set": sets}).json()
    assert config["num_attention_heads"] == 96
    refused = server.post("/api/config", {"model": "deepseek-v2", "set": {"num_heads": 96, "num_kv_heads": 64}})
    assert refused.status_code == 422
    assert "fixed by latent attention" in refused.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "Llama 3.1 8B",
        "mixtral-8x7b",
        "gpt2-xl",
        "pythia-2.8b",
        "qwen2.5-7b",
        "mistral-7b-v0.1",
        "deepseek-v3",
        "falcon-40b",
        "gemma-3-4b",
        "gpt-neo-2.7b",
        "gpt-oss-20b",
        "llama-4-scout",
        "opt-350m",
        "t5-v1.1-xxl",
    ],
)
def test_a_zoo_model_gives_a_config_that_reads_as_it(server: Any, name: str) -> None:
    config = server.post("/api/config", {"model": name})
    assert config.status_code == 200, config.text
    own = server.post("/api/estimate", {"model": name}).json()["model"]
    read = server.post("/api/estimate", {"config": config.json()}).json()["model"]
    sizes = ("num_params", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "ffn_hidden_size", "vocab_size")
    assert {key: own.get(key) for key in sizes} == {key: read.get(key) for key in sizes}


def test_fewer_layers_keep_their_windows_and_a_size_no_class_holds_is_refused_at_its_field(server: Any) -> None:
    config = server.post("/api/config", {"model": "gemma-3-1b", "set": {"num_layers": 12}}).json()
    assert config["layer_types"] == [*(["sliding_attention"] * 2), "full_attention"] * 4
    refused = server.post("/api/config", {"model": "bloom-7.1b", "set": {"ffn_hidden_size": 16640}})
    assert refused.status_code == 422
    assert refused.json()["error"]["field"] == "ffn_hidden_size"
    assert refused.json()["error"]["nearest"] == "16384"


@pytest.mark.parametrize("name", ["gpt2-xl", "deepseek-v2-lite"])
@pytest.mark.parametrize("words", [{}, {"tp": 2}, {"tp": 3}, {"phase": "decode"}])
def test_while_a_size_moves_the_times_are_those_it_settles_at(server: Any, name: str, words: dict[str, Any]) -> None:
    asked = {"model": name, "set": {"vocab_size": 51200}, **words}
    settled, moving = (
        server.post("/api/shape", asked).json(),
        server.post("/api/shape", {**asked, "moving": True}).json(),
    )
    for answer in (settled, moving):
        del answer["totals"]["would_fit"]
    for key in ("totals", "operators", "says", "model", "runs"):
        assert moving[key] == settled[key], key


@pytest.mark.parametrize(
    ("config", "changed", "written"),
    [
        ({"model_type": "qwen", "intermediate_size": 22016}, {"ffn_hidden_size": 11264}, {"intermediate_size": 22528}),
        (
            {"model_type": "t5", "num_layers": 12, "num_decoder_layers": 12, "d_ff": 2048, "d_model": 768, "d_kv": 64},
            {"num_layers": 14},
            {"num_layers": 14, "num_decoder_layers": 14},
        ),
        (
            {"model_type": "gemma2", "num_hidden_layers": 42, "sliding_window": 4096, "intermediate_size": 14336},
            {"num_layers": 44},
            {"num_hidden_layers": 44},
        ),
    ],
)
def test_a_size_that_a_file_says_twice_doubled_or_by_layer_is_written_so(
    server: Any, config: dict[str, Any], changed: dict[str, int], written: dict[str, int]
) -> None:
    sizes = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
    t5 = {"num_heads": 12, "vocab_size": 32128, "feed_forward_proj": "gated-gelu"}
    whole = {**(t5 if config["model_type"] == "t5" else {**sizes, "num_key_value_heads": 8}), **config}
    reply = server.post("/api/config", {"config": whole, "set": changed})
    assert reply.status_code == 200, reply.text
    assert {key: reply.json()[key] for key in written} == written


def test_a_place_and_a_schedule_are_answered(server: Any, repo_dir: Path) -> None:
    folder = repo_dir / "examples"
    place = json.loads((folder / "placement" / "encoder_decoder.json").read_text())
    schedule = json.loads((folder / "schedule" / "decoder_backward.json").read_text())
    assert server.post("/api/place", {"instance": place}).json()["status"] == "optimal"
    found = server.post("/api/schedule", {"instance": schedule, "solver": "greedy"}).json()
    assert found["makespan"] >= found["lower_bound"] > 0


def test_every_route_is_in_the_openapi_document(server: Any) -> None:
    document = server.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    for route in ROUTES:
        assert document["paths"][route.path][route.method.lower()]["operationId"] == route.name


def test_the_page_draws_what_the_report_draws(server: Any) -> None:
    asked = {"model": "llama-3.1-8b", "gpu": "h100", "tp": 2}
    here = server.post("/api/shape/roofline", asked).json()
    there = drawn(roofline_points(api.estimate("llama-3.1-8b", "h100", tp=2).microbatch))
    assert {name: here[name] for name in there} == there
    planned = server.post("/api/plan/figures", {"model": "gpt2-xl", "num_devices": 8, "global_batch_size": 64}).json()
    points = plan_points(api.plan("gpt2-xl", num_devices=[8], global_batch_size=64))
    assert {name for name, figure in planned["figures"].items() if "spec" in figure} == {*points} - LOOKED_INTO
    for name in {*points} - LOOKED_INTO:
        assert planned["figures"][name] == drawn(points[name])


LOOKED_INTO = {"pipeline", "pipeline_memory"}
"""Figures that are an instrument on the page: one window of time for both."""


def test_the_page_calls_the_parts_by_the_words_of_the_report(repo_dir: Path) -> None:
    folder = repo_dir / "src" / "sartor" / "web" / "static"
    source = (folder / "charts.js").read_text() + (folder / "design.js").read_text()
    for name, words in (
        ("SPENT", {part.name: part.words for part in PARTS}),
        ("HELD", {part.name: part.words for part in MEMORY}),
        ("AREA", AREA_WORDS),
        ("POWER", POWER_WORDS),
        ("STEP", {part.name: part.words for part in STEP_TIME}),
    ):
        table = source.partition(f"const {name} = {{")[2].partition("}")[0]
        said = dict(re.findall(r'(\w+): "([^"]+)"', table))
        assert said.items() >= words.items()
