"""``sartor extract`` at the command line where torch is not installed, and graphs where a model is asked for."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from sartor.cli import run
from sartor.errors import install_command

GRAPH = Path(__file__).resolve().parents[1] / "golden" / "tiny_llama_graph.json"


@pytest.mark.parametrize("model", ["llama-3.1-8b", "mypackage.models:make"])
def test_without_torch_the_install_command_is_said(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    assert run(["extract", model, "--json"]) == 2
    shown = capsys.readouterr()
    assert install_command("torch") in shown.err
    assert install_command("torch") in json.loads(shown.out)["error"]["message"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["x:y", "--phase", "decode"], "forward and backward"),
        (["x:y", "--dtype", "bf15"], "must be one of bf16"),
        (["llama-3.1-8b", "--seq-len", "0"], "at least 1"),
    ],
)
def test_bad_words_are_refused_before_torch_is_asked_for(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["extract", *words]) == 2
    assert said in capsys.readouterr().err


def test_estimate_takes_a_graph_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", str(GRAPH), "--gpu", "h100", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    names = [op["name"] for op in answer["operators"]]
    assert "self_attn.q_proj.wgrad" in names
    assert answer["model"]["num_params"] == json.loads(GRAPH.read_text())["model"]["num_params"]


def test_lint_of_a_graph_says_what_to_ask_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", str(GRAPH), "--gpu", "h100"]) == 2
    assert "config.json" in capsys.readouterr().err


def test_kernels_of_a_graph_are_fused_or_not_when_it_is_extracted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["estimate", str(GRAPH), "--gpu", "h100", "--eager"]) == 2
    assert "extract it again with --eager" in capsys.readouterr().err
