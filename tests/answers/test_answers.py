"""What every answer of the Python API can do: a short repr, a table in a notebook, JSON, a data frame."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sartor import api
from sartor.answers.field import Answer, MapOf, Scalar, field, mapping, number, rows, schema_of, to_json
from sartor.designs.space import space_from
from sartor.errors import InputError


@pytest.fixture(scope="module")
def gemm() -> Answer:
    return api.gemm(4096, 4096, 4096, "h100")


def test_a_repr_is_one_line_with_the_headline(gemm: Answer) -> None:
    assert repr(gemm).startswith("<GemmAnswer: GEMM ")
    assert ", bound by compute, GPU h100_sxm" in repr(gemm)
    assert "\n" not in repr(gemm)
    assert len(repr(gemm)) < 200


RUN: dict[str, Any] = {"num_devices": 8, "global_batch_size": 8}
LOG = "examples/llama-3-8b/train.log"
ONE_CHIP = space_from(
    {"num_tensor_cores": 2, "num_vector_cores": 1, "array_rows": 128, "array_cols": 128, "global_buffer_mib": 32}
)
ANSWERS: dict[str, Callable[[], Answer]] = {
    "estimate": lambda: api.estimate("gpt2", **RUN),
    "a grid": lambda: api.estimate("gpt2", tp=[1, 2], **RUN),
    "lint": lambda: api.lint("gpt2", **RUN),
    "advise": lambda: api.advise("gpt2", **RUN),
    "plan": lambda: api.plan("gpt2", **RUN),
    "serving": lambda: api.serving("llama-3.1-8b", concurrency=8),
    "deploy": lambda: api.deploy("llama-3.1-8b", "h100", users=8, pools=False),
    "ask": lambda: api.ask("gpt2", **RUN),
    "read": lambda: api.read("gpt2"),
    "launch": lambda: api.launch(api.plan("gpt2", **RUN), "megatron"),
    "place": lambda: api.place("examples/placement/encoder_decoder.json"),
    "schedule": lambda: api.schedule("examples/schedule/decoder_backward.json", time_limit=0),
    "operators": lambda: api.operators("gemm", {"m": 64, "n": 64, "k": 64}, gpu="h100"),
    "collective": lambda: api.collective("all_reduce", 1e6, 8),
    "design": lambda: api.design("gpt2", **RUN, space=ONE_CHIP),
    "diagnose": lambda: api.diagnose(LOG, model="llama-3-8b", gpu="h100", seq_len=8192, **RUN, best_plan=False),
    "compare": lambda: api.compare(LOG, LOG),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_answer_has_a_short_repr_a_page_json_and_a_frame(
    name: str, repo_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(repo_dir)
    answer = ANSWERS[name]()
    assert 30 <= len(repr(answer)) < 200
    assert "\n" not in repr(answer)
    assert not re.search(r"[a-z]\.[A-Z]{2}", repr(answer))  # Status.OPTIMAL
    assert answer._repr_html_().startswith("<p>")
    assert json.dumps(answer.to_dict())
    assert len(answer.to_frame()) >= 1


@pytest.mark.parametrize("name", ["estimate", "lint", "advise"])
def test_a_repr_says_what_was_priced_how_fast_it_is_and_whether_it_fits(name: str) -> None:
    words = repr(ANSWERS[name]())
    assert "model GPT-2 small, GPU h100_sxm, time " in words
    assert "fits True" in words


def test_a_repr_of_a_run_or_a_server_says_how_fast_it_is(repo_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo_dir)
    assert "train.log, model Llama 3 8B, step 1.31 s, predicted 1." in repr(ANSWERS["diagnose"]())
    assert "B over A 1.000, changed False" in repr(ANSWERS["compare"]())
    assert "in flight 8, time per token " in repr(ANSWERS["serving"]())


def test_what_an_answer_holds_has_a_repr_that_can_be_read() -> None:
    plan, advice = api.plan("gpt2", **RUN), api.advise("gpt2", **RUN)
    assert repr(plan.best).startswith("PricedPlan(step_s=")
    for record in (plan.best, plan.search, advice.search, advice.base.microbatch, advice.base.graph):
        assert len(repr(record)) < 1500


@pytest.mark.parametrize("command", ["estimate", "lint", "advise", "plan", "ask", "serving", "design"])
def test_a_config_object_and_a_dictionary_are_models(
    command: str, repo_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repo_dir)
    fields = json.loads((repo_dir / "examples" / "gpt2" / "config.json").read_text())
    config = SimpleNamespace(model_type="gpt2", to_dict=lambda: fields)
    run = {} if command == "serving" else {**RUN, "space": ONE_CHIP, "baselines": False} if command == "design" else RUN
    answers = [getattr(api, command)(model, **run).to_dict() for model in (fields, config)]
    for answer in answers:
        for name in ("wall_s", "evaluated_per_s", "seconds"):
            answer.pop(name, None)
    assert answers[0].keys() == answers[1].keys()
    assert answers[0].get("model") == answers[1].get("model")


def test_a_notebook_shows_the_headline_and_the_first_rows() -> None:
    page = api.estimate("gpt2-small", "a100")._repr_html_()
    assert "<table>" in page
    assert "ModelEstimate" in page
    assert page.count("<tr>") <= 21


def test_to_dict_is_the_json_of_the_command(gemm: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    from sartor.cli import run

    assert run(["gemm", "4096", "4096", "4096", "--gpu", "h100", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {key: printed[key] for key in gemm.to_dict()} == json.loads(json.dumps(gemm.to_dict()))


def test_a_frame_has_a_row_for_each_record() -> None:
    pytest.importorskip("pandas")
    answer = api.estimate("gpt2-small", "a100")
    frame = answer.to_frame()
    assert len(frame) == len(answer.graph.operators)
    assert {"name", "time_s", "low_s", "high_s"} <= set(frame.columns)


def test_without_pandas_a_frame_is_refused_in_one_sentence(gemm: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        gemm.to_frame()


def test_a_table_gives_json_and_its_schema() -> None:
    table = (
        number("time_s", "time", help="predicted"),
        field("best", (number("mfu"),), null=True),
        rows("layers", Scalar.INTEGER),
        mapping("", Scalar.INTEGER, path=lambda record: record["sizes"]),
        field("per_gpu", MapOf(Scalar.NUMBER, null=True)),
    )
    record = {"time_s": float("inf"), "best": None, "layers": (1, 2), "sizes": {"num_heads": 8}, "per_gpu": {"a": None}}
    body = {"time_s": None, "best": None, "layers": [1, 2], "num_heads": 8, "per_gpu": {"a": None}}
    assert to_json(record, table) == body
    schema = schema_of(table)
    assert schema["properties"]["time_s"] == {"type": "number", "description": "predicted", "unit": "s"}
    assert schema["properties"]["best"]["type"] == ["object", "null"]
    assert schema["additionalProperties"] == {"type": "integer"}
