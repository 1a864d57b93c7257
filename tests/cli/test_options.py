"""Every option has one home, and every command shows how it is used."""

from __future__ import annotations

import ast
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from sartor import cli
from sartor.cli import GROUPS, app_with
from sartor.cli.run_options import ALSO
from sartor.designs.options import DesignOptions
from sartor.model.workload import Optimizer
from sartor.options import declared as design_options
from sartor.run.fields import FIELDS
from sartor.units import parse_seconds


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that can be run, with the words that call it."""
    inner = getattr(command, "commands", {})
    if not inner or command.invoke_without_command:
        yield words, command
    for name, each in inner.items():
        yield from commands(each, (*words, name))


COMMANDS = {
    " ".join(words): command
    for words, command in commands(typer.main.get_command(app_with(*GROUPS)))
    if words  # the root itself
}


def declared(source: Path) -> Iterator[str]:
    """Flags that a module declares: spelt in ``typer.Option`` (or a ``partial`` of it), or named by its parameter."""
    of_parameter: dict[ast.AST, str] = {}
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.arg) and node.annotation is not None:
            of_parameter |= dict.fromkeys(ast.walk(node.annotation), node.arg)
        if isinstance(node, ast.Call) and any(ast.unparse(each) == "typer.Option" for each in (node.func, *node.args)):
            words = [each.value for each in node.args if isinstance(each, ast.Constant)]
            flags = [flag for word in words if isinstance(word, str) for flag in word.split("/") if flag[:2] == "--"]
            named = [of_parameter[node]] if node in of_parameter else []  # else a flag of the table of a run's fields
            yield from flags or [f"--{name.replace('_', '-')}" for name in named]


def test_no_option_is_declared_twice(repo_dir: Path) -> None:
    places = defaultdict[str, list[str]](list)
    for source in sorted((repo_dir / "src" / "sartor").rglob("*.py")):
        if "typer.Option" in source.read_text():
            for flag in declared(source):
                places[flag].append(source.name)
    assert {flag: files for flag, files in places.items() if len(files) > 1} == {}
    offered = {flag for command in COMMANDS.values() for each in command.params for flag in each.opts}
    of_tables = {row.flag for row in FIELDS.values()} | {
        f"--{name.replace('_', '-')}" for name in design_options(DesignOptions)
    }
    of_tables |= {flag for others in ALSO.values() for flag in others}
    assert {flag for flag in offered if flag.startswith("--")} <= set(places) | of_tables


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_an_example_for_every_command(name: str) -> None:
    assert f"Example: `sartor {name} " in (COMMANDS[name].help or "")
    assert all(each.help for each in COMMANDS[name].params if each.param_type_name == "option" and not each.hidden)


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_of_help_is_understood_in_an_empty_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in re.findall(r"Example: `sartor ([^`]+)`", COMMANDS[name].help):
        example = next(
            other for other in sorted(COMMANDS, key=len, reverse=True) if f"{words} ".startswith(f"{other} ")
        )
        COMMANDS[example].make_context(example, shlex.split(words.removeprefix(example)))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns_with_whole_names(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    assert cli.run([*name.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert {flag for each in COMMANDS[name].params if not getattr(each, "hidden", False)
            for flag in (*each.opts, *each.secondary_opts) if flag[:2] == "--"} <= set(text.split())  # fmt: skip


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("catalog", "gpu"), "gpus"),
        (("collective", "allreduce", "64e6", "8"), "all_reduce"),
        (("schema", "estmate"), "estimate"),
        (("lint", "gpt2", "--fail-on", "warning"), "warn"),
    ],
)
def test_a_misspelled_word_of_a_list_is_told_the_nearest(
    words: tuple[str, ...], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(list(words)) == 2
    assert capsys.readouterr().err.rstrip().endswith(f"; nearest: {near}")


def test_help_of_serving_tells_its_default_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["serving", "--help"]) == 0
    assert "[default: the cluster's, else h100]" in " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        ("estimate llama-3-8b --gpu h100 --batch 4", "--microbatch-size"),
        ("estimate llama-3-8b --gpu h100 --fp8", "--dtype"),
        ("plan llama-3-8b --gpus 8", "--num-devices"),
        ("serving llama-3-8b --gpu h100 --users 8", "--concurrency"),
        ("serving llama-3-8b --gpu h100 --global-batch-size 8", "--concurrency"),
        ("serving llama-3-8b --cluster dgx-h100", "--gpu"),
        ("gemm -m 4 -n 4 -k 4 --gpu h100", "the argument M, without -m"),
        ("advise --model llama-3-8b --gpu h100", "the argument MODEL, without --model"),
        ("design llama-3-8b", "--model"),
        ("plan llama-3-8b --gpu h100", "--cluster (a GPU's name is one too)"),
    ],
)
def test_a_word_of_another_tool_is_answered_by_ours(sartor: Callable[..., Any], words: str, nearest: str) -> None:
    assert sartor(*words.split(), "--json").refusal().endswith(f"; nearest: {nearest}\n")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0.2", 0.2), ("200ms", 0.2), ("2e2 MS", 0.2), ("1.5h", 5400.0), ("20us", 2e-5)],
)
def test_a_time_may_have_its_unit(text: str, seconds: float) -> None:
    assert parse_seconds("ttft", text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("lint", "", "--gpu", "h100"), "the word after lint='': is empty: give it a value, or leave it out"),
        (("plan", "gpt2", "--num-devices", "8", "--cluster", ""), "--cluster='': is empty"),
        (("plan", "gpt2", "--num-devices", "8", "--cluster="), "--cluster='': is empty"),
        (("serving", "gpt2", "--concurrency", "8,,64"), "--concurrency=8,,64: must be a whole number, or several"),
        (("advise", "gpt2", "--objective", "trian"), "--objective=trian: must be train, prefill, decode, shares of"),
        (
            ("place", "examples/schedule/decoder_backward.json"),
            "has 'ops', so it is for another command; nearest: sartor",
        ),
        (
            ("deploy", "gpt2", "--gpu", "h100", "--ttft", "2x"),
            "must be a number of seconds, or of ms, min or h by name",
        ),
        (("validate", "memory"), "measurements of your own (none is shipped; docs/howto/validate.md)"),
    ],
)
def test_a_word_that_is_missing_is_never_a_default(
    sartor: Callable[..., Any], words: tuple[str, ...], sentence: str
) -> None:
    ran = sartor(*words)
    assert ran.code == 2
    assert sentence in ran.err


def test_a_layout_of_amd_is_refused_on_another_gpu(sartor: Callable[..., Any]) -> None:
    asked = ("gemm", 64, 64, 64, "--layout", "TILED", "--gpu")
    ran = sartor(*asked, "h100")
    assert ran.code == 2
    assert "--layout=TILED: is of pre-shuffled weights on AMD GPUs, not of h100_sxm" in ran.err
    assert sartor(*asked, "mi300x").code == 0


def test_every_size_is_read_as_those_of_a_run(sartor: Callable[..., Any]) -> None:
    assert sartor("gemm", "4k", 4096, "4,096", "--json").body["m"] == 4096
    of_design = ("design", "--model", "gpt2", "--num-devices", 8, "--global-batch-size")
    tokens = "'4M' counts sequences, not tokens: divide the tokens by seq_len; nearest: 1024, if tokens"
    assert tokens in sartor(*of_design, "4M", "--json").refusal()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("pl", {"plan", "place"}),
        ("estimate gpt2 --gpu h100_p", {"h100_pcie", "h100_pcie_80gb"}),
        ("plan gpt2 --cluster dgx-h", {"dgx-h100", "dgx-h200"}),
        ("plan gpt2 --cluster b200", {"b200", "b200_sxm", "b200_180gb"}),
        ("plan llama-3.1-", {"llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"}),
        ("plan gpt2 --set num_h", {"num_heads="}),
        ("plan gpt2 --fix micro", {"microbatch_size="}),
        ("plan gpt2 --recompute s", {"selective"}),
        ("plan gpt2 --framework torcht", {"torchtitan", "torchtune"}),
        ("estimate gpt2 --phase ", {"train", "prefill", "decode"}),
        ("estimate gpt2 --dtype mx", {"mxfp8", "mxfp4"}),
        ("lint gpt2 --allow ragged_v", {"ragged_vocab"}),
        ("catalog clusters dgx-h", {"dgx-h100", "dgx-h200"}),
        ("plan gpt2 --gpus nonsense --clus", {"--cluster"}),
        ("plan --launch ", set()),  # the shell offers files
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_names_fields_and_words(
    shell: str, typed: str, offered: set[str], sartor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["sartor", *typed.split(" ")]
    monkeypatch.setenv("_SARTOR_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", " ".join(words))
    ran = sartor()
    assert (ran.code, ran.err) == (0, "")
    if shell == "bash":
        assert set(ran.out.split()) == offered
    else:
        assert set(re.findall(r'(?<![^\s(])"([^"]+)"', ran.out)) == offered
        assert offered or ran.out == "_files\n"


@pytest.mark.parametrize(("instruction", "code"), [("source_bash", 0), ("source_zsh", 0), ("complete_tcsh", 1)])
def test_a_completion_script_is_no_internal_error(
    instruction: str, code: int, sartor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_SARTOR_COMPLETE", instruction)
    ran = sartor()
    assert ran.code == code
    assert "internal error" not in ran.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["estimate", "advise", "lint", "serving", "deploy --rate 1 --input-len 256 --output-len 256"]
)
def test_a_gpu_that_nobody_stated_is_said_as_assumed(sartor: Callable[..., Any], command: str) -> None:
    words = command.split()
    said = sartor(*words[:1], "gpt2", *words[1:])
    assert "gpu=h100_sxm" in said.out + said.err
    stated = sartor(*words[:1], "gpt2", *words[1:], "--gpu", "h100")
    assert "gpu=h100_sxm" not in stated.out + stated.err


def test_the_optimizers_that_an_option_takes_are_all_that_there_are() -> None:
    assert FIELDS["optimizer"].choices == tuple(kind.value for kind in Optimizer)
