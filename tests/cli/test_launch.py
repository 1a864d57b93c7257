"""``sartor plan --write``, ``--launch``, ``--html``, ``--trace``: files, exit codes, and that both ways agree."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sartor import api
from sartor.launch.plan import LaunchKind

Call = Callable[..., Any]
MODEL = "llama-3.1-8b"
SIZE = ("--num-devices", "16", "--global-batch-size", "32", "--fix", "tp=1,pp=1,cp=1")


@pytest.mark.parametrize("kind", ["megatron", "torchtitan", "deepspeed", "accelerate"])
def test_a_plan_written_and_linted_is_priced_the_same(sartor: Call, kind: str, tmp_path: Path) -> None:
    planned = sartor("plan", MODEL, *SIZE, "--write", kind, tmp_path, "--json")
    assert planned.code == 0
    assert "wrote" in planned.err
    launched = sartor("plan", MODEL, "--launch", tmp_path, "--json")
    assert launched.code == 0
    written_again = sartor("plan", MODEL, *SIZE, "--write", kind, tmp_path, "--overwrite")
    assert f"of those that files of {LaunchKind(kind).title} can say" in " ".join(written_again.out.split())
    told, best = launched.body["plan"], planned.body["best"]
    assert launched.body["launch"]["unknown"] == []
    if "cannot be told" not in planned.err:
        assert told["step_s"] == pytest.approx(best["step_s"], rel=1e-12)
        assert told["peak_bytes"] == pytest.approx(best["peak_bytes"], rel=1e-12)


def test_a_wasteful_launch_is_found_with_the_exit_code_asked_for(sartor: Call, tmp_path: Path) -> None:
    sartor("plan", MODEL, "--num-devices", "16", "--global-batch-size", "32", "--write", "megatron", tmp_path)
    script = tmp_path / "launch.sh"
    full = "    --bf16\n    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1\n"
    script.write_text(script.read_text().replace("    --bf16\n", full))
    ran = sartor("plan", "--launch", script, "--json")
    assert ran.code == 0
    rules = {f["rule"]: f for f in ran.body["findings"]}
    assert {"slower_than_best", "unneeded_recompute"} & set(rules)
    assert sartor("plan", "--launch", script, "--fail-on", "warn").code == 1
    shown = sartor("plan", "--launch", script).out
    assert "saves" in shown
    assert "Memory by stage" in shown


def test_a_launch_that_does_not_fit_is_an_answer_with_code_3(sartor: Call, tmp_path: Path) -> None:
    text = (
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 80 --hidden-size 8192 --num-attention-heads 64 --bf16"
        " --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 8 --swiglu"
        " --some-new-flag"
    )
    (tmp_path / "run.sh").write_text(text)
    ran = sartor("plan", "--launch", tmp_path / "run.sh", "--json")
    assert ran.code == 3
    assert ran.body["status"] == "infeasible"
    assert ran.body["findings"][0]["rule"] == "does_not_fit"
    assert ran.body["launch"]["unknown"] == ["--some-new-flag"]
    assert "DOES NOT FIT" in sartor("plan", "--launch", tmp_path / "run.sh").out


SCRIPT = (
    "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py --num-layers 8 --hidden-size 2048 --num-attention-heads 16"
    " --bf16 --seq-length 2048 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 64"
    " --vocab-size 32000 --swiglu --use-flash-attnn"
)


def test_what_is_given_beside_a_launch_wins_and_is_said(sartor: Call, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    as_it_is = sartor("plan", "--launch", tmp_path / "run.sh", "--json").body
    assert as_it_is["launch"]["unknown"] == ["--use-flash-attnn (did you mean --use-flash-attn?)"]
    measured = sartor("plan", "--launch", tmp_path / "run.sh", "--cluster", "dgx-a100", "--json").body
    assert measured["plan"]["step_s"] > 2 * as_it_is["plan"]["step_s"]
    words = ["plan", "--launch", tmp_path / "run.sh", "--num-devices", "8", "--seq-len", "4096", "--json"]
    ran = sartor(*words).body
    assert (ran["plan"]["num_devices"], ran["job"]["seq_len"]) == (8, 4096)
    assert "num_devices=8 as stated; the script starts 16" in ran["assumptions"]
    assert "seq_len=4096 as stated; the file says 2048" in ran["assumptions"]
    assert not any("the file says" in line for line in as_it_is["assumptions"])


@pytest.mark.parametrize("option", ["--html x", "--write megatron x"])
def test_what_only_a_search_uses_is_not_taken_beside_a_launch(sartor: Call, option: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT)
    ran = sartor("plan", "--launch", tmp_path / "run.sh", *option.split())
    assert ran.code == 2
    assert option.split()[0] in ran.err
    assert "cannot be used with --launch" in ran.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("plan",), "MODEL"),
        (("plan", MODEL, *SIZE, "--write", "horovod", "x"), "--write=horovod"),
        (("plan", "--launch", "missing.sh"), "no such file"),
        (("plan", "--launch", "missing.sh", "--fail-on", "often"), "--fail-on=often"),
        (("plan", "--launch", "missing.sh", "--num-devices", "8,16"), "must be one number"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(
    sartor: Call, words: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = sartor(*words)
    assert ran.code == 2
    assert sentence in ran.err
    assert "Traceback" not in ran.err


def test_files_that_differ_are_not_replaced_unless_told(sartor: Call, tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text("mine")
    ran = sartor("plan", MODEL, *SIZE, "--write", "megatron", tmp_path)
    assert ran.code == 2
    assert (tmp_path / "launch.sh").read_text() == "mine"
    assert sartor("plan", MODEL, *SIZE, "--write", "megatron", tmp_path, "--overwrite").code == 0


def test_page_figures_and_trace_are_written_where_asked(sartor: Call, tmp_path: Path) -> None:
    files = ("--html", tmp_path / "p.html", "--png", tmp_path / "png", "--trace", tmp_path / "t.json")
    ran = sartor("plan", MODEL, *SIZE, *files, "--json")
    assert ran.code == 0
    assert ran.body["status"] == "optimal"
    assert (tmp_path / "p.html").read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert len(list((tmp_path / "png").glob("*.png"))) >= 4


@pytest.mark.parametrize("kind", ["deepspeed", "accelerate"])
def test_what_a_trainers_files_cannot_say_is_searched_for_without(sartor: Call, kind: str, tmp_path: Path) -> None:
    words = ("--num-devices", "16", "--global-batch-size", "16", "--set", "num_layers=8", "--framework", "megatron")
    ran = sartor("plan", "mixtral-8x7b", *words, "--write", kind, tmp_path / kind)
    assert ran.code == 0
    assert "cannot run the best plan" not in ran.err
    read = api.lint_launch(tmp_path / kind, "dgx-h100", model="mixtral-8x7b", seq_len=4096, search=False)
    assert (read.priced.plan.dims.pp, read.priced.plan.dims.ep) == (1, 1)


def test_a_vocabulary_is_padded_by_megatron_alone(sartor: Call, tmp_path: Path) -> None:
    words = ("plan", "gpt2-small", "--num-devices", "8", "--global-batch-size", "64")
    assert sartor(*words, "--json").body["model"]["vocab_size"] % 128
    notes = {kind: " ".join(sartor(*words, "--framework", kind).out.split()) for kind in ("megatron", "torchtitan")}
    assert "padded to 50304, as megatron does" in notes["megatron"]
    assert "padded" not in notes["torchtitan"]


ODD = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5510, "num_hidden_layers": 20,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 50257, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["megatron", "torchtitan", "deepspeed", "accelerate"])
def test_the_recommended_shape_is_written_with_its_config_and_a_plan_that_fits(
    sartor: Call, kind: str, tmp_path: Path
) -> None:
    (tmp_path / "odd.json").write_text(json.dumps(ODD))
    folder = tmp_path / kind
    advised = sartor("advise", tmp_path / "odd.json", "--num-devices", "8", "--write", kind, folder, "--json")
    assert advised.code == 0
    changed = (advised.body["smallest_edit"] or advised.body["candidates"][0])["changed"]
    assert "ffn_hidden_size" in changed
    config = api.read(folder / "config.json")
    assert {name: int(config.shape.fields()[name]) for name in changed} == {n: new for n, (_, new) in changed.items()}
    launched = sartor("plan", folder / "config.json", "--launch", folder, "--json")
    assert launched.code == 0
    assert launched.body["launch"]["unknown"] == []
    if kind == "torchtitan":
        assert "_build_llama3_layers" in (folder / "sartor_config.py").read_text()


def test_files_of_an_advice_want_a_training_run_and_a_named_model(sartor: Call, tmp_path: Path) -> None:
    ran = sartor("advise", "gpt2", "--objective", "decode", "--write", "megatron", tmp_path / "a")
    assert ran.code == 2
    assert "--objective train" in ran.err
    assert "name the model" in sartor("advise", "--write", "megatron", tmp_path / "b").err
