"""``sartor validate`` as people and scripts call it: JSON, files, pages, exit codes, one sentence for bad input."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from records.made_tables import gemm_rows, write_csv, write_parquet
from sartor.cli import app, run, validate
from sartor.report.accuracy_document import accuracy_view
from sartor.validate.accuracy import validate_operators
from sartor.validate.answer import accuracy_body

KEYS = ("rows", "expressed", "mape", "median_error", "p90_error", "bias", "coverage_80", "kendall_tau", "pair_accuracy")


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    if not any(group.name == "validate" for group in app.registered_groups):
        validate.register(app)
    assert isinstance(app, typer.Typer)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run_words(*words: object) -> tuple[int, str, str]:
        code = run([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_words


def test_json_has_the_contracts_keys(tmp_path: Path, call: Callable[..., Any]) -> None:
    path = write_parquet(tmp_path / "x.parquet", gemm_rows(1.25))
    code, out, _ = call("validate", "operators", "--data", path, "--json")
    body = json.loads(out)
    assert (code, body["schema"]) == (0, "sartor/validate/1")
    (group,) = body["groups"]
    assert list(group)[:3] == ["table", "gpu", "dtype"]
    assert set(KEYS) <= set(group)
    assert group["mape"] == pytest.approx(0.2)
    assert body["not_expressed"] == {}


def test_people_get_a_table_with_reasons_that_fits(tmp_path: Path, call: Callable[..., Any]) -> None:
    path = write_parquet(tmp_path / "x.parquet", gemm_rows(1.25))
    code, out, _ = call("validate", "operators", "--data", path, "--verbose")
    assert code == 0
    assert "20.0%" in out
    assert "bound by" in out
    assert "tile" in out
    assert max(map(len, out.splitlines())) <= 100


def test_one_screen_says_first_how_far_off_over_how_many_and_what_is_worst(
    tmp_path: Path, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = [*gemm_rows(1.25), *(row for gpu in ("gh200", "l40s", "a100_sxm") for row in gemm_rows(gpu=gpu))]
    _, out, _ = call("validate", "operators", "--data", write_parquet(tmp_path / "x.parquet", rows))
    lines = out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    first = " ".join(out.split())
    assert first.startswith("Off by ")
    assert 0 < first.index(" targets. ") < first.index("The 80% intervals hold ") < first.index("Worst: gpu=")
    assert first.index("Worst: ") < first.index("MAPE")
    assert lines[-1].endswith("--verbose")


def test_people_are_told_what_was_lent_and_by_whom(tmp_path: Path, call: Callable[..., Any]) -> None:
    """On the terminal and on the page; a table priced by its device's own measurements has nothing to tell."""
    rows = [*gemm_rows(), *gemm_rows(gpu="gh200"), *gemm_rows(gpu="l40s")]
    path, html = write_parquet(tmp_path / "x.parquet", rows), tmp_path / "x.html"
    _, out, _ = call("validate", "operators", "--data", path, "--html", html)
    for text in (" ".join(out.split()), html.read_text()):
        assert "borrowed from h200_sxm: gh200 (gemm bfloat16)" in text
        assert "not measured on this GPU: l40s (gemm bfloat16)" in text
    _, own, _ = call("validate", "operators", "--data", write_parquet(tmp_path / "y.parquet", gemm_rows()))
    assert "Calibration:" not in own


def test_a_missing_extra_leaves_one_json_object(
    tmp_path: Path, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    path = write_parquet(tmp_path / "x.parquet", gemm_rows())
    code, out, err = call("validate", "operators", "--data", path, "--html", tmp_path / "x.html", "--json")
    assert code == 2
    assert "[report]" in json.loads(out)["error"]["message"]
    assert len(err.strip().splitlines()) == 1


def test_html_and_out_are_written(tmp_path: Path, call: Callable[..., Any]) -> None:
    path = write_parquet(tmp_path / "x.parquet", gemm_rows(1.25))
    html, out_file = tmp_path / "x.html", tmp_path / "x.json"
    code, _, _ = call("validate", "operators", "--data", path, "--html", html, "--out", out_file)
    page = html.read_text()
    assert code == 0
    assert page.count("<svg") == 2
    assert "://" not in page.replace("http://www.w3.org", "")
    assert json.loads(out_file.read_text())["groups"]


@pytest.mark.parametrize("name", ["<b>x</b>", "a\x1b[31m", "../../x", "", "ü" * 300])
def test_names_from_a_file_neither_colour_nor_become_markup(
    tmp_path: Path, call: Callable[..., Any], name: str
) -> None:
    rows = [*gemm_rows(), *({**row, "gpu": name} for row in gemm_rows())]
    code, out, _ = call(
        "validate", "operators", "--data", write_parquet(tmp_path / "x.parquet", rows), "--html", tmp_path / "x.html"
    )
    assert code == 0
    assert "\x1b" not in out
    assert "<b>x" not in (tmp_path / "x.html").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("operators", "--data", "nowhere"),
        ("operators", "--data", "{empty}"),
        ("operators", "--data", "{good}", "--group-by", "nothing"),
        ("operators", "--data", "{good}", "--clock", "warp"),
        ("operators",),
        ("inference", "--data", "{good}"),
        ("nonsense",),
    ],
)
def test_bad_input_is_exit_2_and_one_sentence(tmp_path: Path, call: Callable[..., Any], words: tuple[str, ...]) -> None:
    good = write_csv(tmp_path / "good.csv", gemm_rows())
    (tmp_path / "empty").mkdir()
    given = [word.format(good=good, empty=tmp_path / "empty") for word in words]
    code, out, err = call("validate", *given, "--json")
    assert code == 2
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert json.loads(out)["error"]["message"]


def test_the_view_takes_plain_data(tmp_path: Path) -> None:
    found = validate_operators(write_csv(tmp_path / "x.csv", gemm_rows()), group_by=["m"])
    body = json.loads(json.dumps(accuracy_body(found)))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(accuracy_view(body))
    assert "4096" in console.export_text()
