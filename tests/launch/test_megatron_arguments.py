"""Which flags are Megatron's own: a name it has is listed or left aside, a name it has not is unknown, always."""

from __future__ import annotations

import csv
import random
import re
from importlib.resources import files
from pathlib import Path

import pytest

from sartor.launch.fields import argument_names, left_over, no_bearing, rows
from sartor.launch.plan import LaunchKind
from sartor.launch.stated import parse_flags

NAMES = sorted(argument_names())


def misspelt(name: str, dice: random.Random) -> str:
    """The name with two different letters next to each other exchanged, as no argument is called."""
    places = [i for i in range(2, len(name) - 1) if name[i] != name[i + 1] and name[i : i + 2].isalpha()]
    typos = [name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in places]
    return dice.choice([typo for typo in typos if typo not in argument_names()])


SEVERAL = random.Random(20261121).sample([name for name in NAMES if len(name) > 8 and "_" not in name], 20)


@pytest.mark.parametrize("name", SEVERAL)
def test_a_typo_of_any_argument_is_unknown_and_the_argument_is_named(name: str) -> None:
    typo = misspelt(name, random.Random(name))
    assert left_over(parse_flags([typo, "7"])) == ([f"{typo} 7 (did you mean {name}?)"], [], [])


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("--lr-decy-style", "--lr-decay-style"),
        ("--save-intervall", "--save-interval"),
        ("--log-throughputs", "--log-throughput"),
        ("--lr_decay_style", "--lr-decay-style"),
        ("--splits", "--split"),
    ],
)
def test_the_beginning_of_a_name_makes_no_argument(typo: str, meant: str) -> None:
    assert no_bearing(typo) or typo == "--splits", "it begins like arguments without bearing"
    assert left_over(parse_flags([typo, "x"])) == ([f"{typo} x (did you mean {meant}?)"], [], [])


@pytest.mark.parametrize("name", ["--lr", "--lr-decay-style", "--no-save-optim", "--wandb-project", "--local_rank"])
def test_what_megatron_has_and_no_step_feels_is_without_bearing(name: str) -> None:
    assert left_over(parse_flags([name])) == ([], [], [name])


@pytest.mark.parametrize(
    "name",
    [
        "--deterministic-mode",
        "--optimizer-offload-fraction",
        "--use-flash-attn-v2",
        "--DDP-impl",
        "--fp8-hybrid",
        "--no-async-tensor-model-parallel-allreduce",
        "--deepspeed_config",
        "--split-transformers",
        "--data-efficiency-curriculum-learning",
        "--logits-load-dir",
        "--create-all-gather-group",
    ],
)
def test_what_megatron_has_and_a_step_may_feel_is_listed_without_a_guess(name: str) -> None:
    assert left_over(parse_flags([name])) == ([], [name], [])


def test_the_list_holds_every_name_that_is_written_and_every_name_that_is_read(repo_dir: Path) -> None:
    with (repo_dir / "tests" / "golden" / "launch_arguments.csv").open(newline="") as file:
        golden = {row["name"] for row in csv.DictReader(file) if row["kind"] == "megatron"}
    rooms = (repo_dir / "src" / "sartor" / "launch").glob("megatron*.py")
    read = {name for path in rooms for name in re.findall(r'"(--\w[\w-]*)"', path.read_text())}
    read |= {name for row in rows(LaunchKind.MEGATRON) for name in (row.argument, *row.older) if name}
    assert len(golden) > 100
    assert len(read) > 60
    assert not (golden | read) - argument_names()


def test_the_list_is_sorted_names_each_once_under_its_sources() -> None:
    text = files("sartor.launch").joinpath("megatron_arguments.txt").read_text(encoding="utf-8")
    lines = text.splitlines()
    head = [line for line in lines if line.startswith("#")]
    names = lines[len(head) :]
    assert "000c4ac24f61159c138b0975def722c65245983c" in "".join(head)
    assert names == sorted(set(names), key=lambda name: (name.lower(), name))
    assert len(names) == len(argument_names()) > 900
    assert all(re.fullmatch(r"--[A-Za-z][\w-]*\w", name) for name in names)
