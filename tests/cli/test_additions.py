"""One addition of each kind, as CONTRIBUTING.md says how, and every answer knows it (a GPU: `test_new_gpu`; a family:
``tests/read/test_add_a_family.py``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from additions import Addition

OF_A_PLAN = "--num-devices 8 --global-batch-size 64 --seq-len 2048"


class TestMechanism(Addition):
    """A mechanism of the step is a file; a line in the list says when it acts, if that is not last."""

    files: ClassVar = {
        "step/mechanisms/coffee.py": '''
"""Coffee: every step waits a fifth of a second for each pipeline stage."""

from sartor.step.mechanisms.mechanism import Mechanism
from sartor.step.mechanisms.mechanism import StepPart


def _at_step(s, _):
    return 0.2 * s.columns["pp"]


COFFEE = Mechanism(
    name="coffee",
    part=StepPart(key="coffee_s", words="coffee breaks"),
    fields=("pp",),
    event="a coffee break",
    at_step=_at_step,
)
'''
    }
    source_files = 1
    question = f"plan llama-3.2-1b --cluster dgx-h100 {OF_A_PLAN} --fix pp=2,tp=2"
    in_text = "coffee breaks"
    in_json = ("best", "time", "coffee_s", pytest.approx(0.4))
    in_page = "coffee breaks"
    in_trace = "a coffee break"

    def check_json(self, body: dict[str, Any]) -> None:
        assert sum(body["best"]["time"].values()) == pytest.approx(body["best"]["step_s"], rel=1e-9)


class TestAxis(Addition):
    """An axis of the plan is its field, its keyword and its row, all in one file; what it costs, a mechanism's file."""

    files: ClassVar = {
        "step/mechanisms/tea.py": '''
"""Tea: every break takes a tenth of a second; a step without one loses half a second to tired hosts."""

import numpy as np

from sartor.step.mechanisms.mechanism import Condition, Mechanism, StepPart


def _at_step(s, _):
    return np.where(s.columns["tea_breaks"] > 0, 0.1 * s.columns["tea_breaks"], 0.5)


def _limits(job):
    yield Condition(reason="tea is served to pairs of devices", ok=lambda r: (r["tea_breaks"] < 2) | (r["tp"] > 1))


TEA = Mechanism(
    name="tea",
    part=StepPart(key="tea_s", words="breaks for tea"),
    fields=("tea_breaks",),
    event="tea",
    limits={"tea_breaks": _limits},
    at_step=_at_step,
)
'''
    }
    edits: ClassVar = {
        "model/plan.py": (
            (
                "    optimizer_offload: Bools = False\n",
                "    optimizer_offload: Bools = False\n    tea_breaks: Ints = 0\n",
            ),
            (
                "    optimizer_offload: Switch | None\n",
                "    optimizer_offload: Switch | None\n    tea_breaks: Size | None\n",
            ),
            (
                "\n)\nAXES: Mapping",
                """
    PlanAxis(
        name="tea_breaks",
        words="tea breaks",
        help="Breaks of a step.",
        least=0,
        values=(0, 1, 2),
        plain=(0,),
        mechanism="breaks for tea",
        phrase="{} tea breaks",
        heading="tea",
    ),
)
AXES: Mapping""",
            ),
        ),
    }
    source_files = 2  # its own, and that of the mechanism that prices it
    question = f"plan llama-3.2-1b --cluster dgx-h100 {OF_A_PLAN} --fix tp=1"
    in_text = "1 tea breaks"
    in_json = ("best", "tea_breaks", 1)
    in_page = "tea breaks"
    in_trace = "tea"

    def check_json(self, body: dict[str, Any]) -> None:
        assert body["best"]["time"]["tea_s"] == pytest.approx(0.1)
        assert any("tea is served" in reason for reason in body["rejected"])

    def test_estimate_states_it_and_says_where_it_is_from(self, package: Path) -> None:
        asked = TestAxis()
        asked.question = f"estimate llama-3.2-1b --gpu h100 {OF_A_PLAN} --tp 2 --tea-breaks 2"  # type: ignore[misc]
        run = json.loads(asked.ask(package, "--json"))["run"]
        assert run["tea_breaks"] == {"value": 2, "origin": "stated", "from": "option"}


class TestTrainer(Addition):
    """A trainer is a file with a record."""

    files: ClassVar = {
        "step/trainers/acme.py": '''
"""Acme's trainer: Megatron's, but it pads the vocabulary to multiples of 4,096 and shards no optimizer states."""

from dataclasses import replace

from sartor.step.trainers.megatron import MEGATRON

ACME = replace(
    MEGATRON,
    name="acme",
    title="Acme",
    aliases=("acme-train",),
    words=("acme",),
    vocab_multiple=4096,
    usual_zero_stage=0,
    launchable=False,
    source="made up for a test",
)
'''
    }
    question = f"plan llama-3.2-1b --cluster dgx-h100 {OF_A_PLAN} --framework acme-train"
    in_text = "vocabulary of 128256 padded to 131072"
    in_json = ("run", "framework", "origin", "stated")
    in_page = "131072"
    in_trace = "optimizer step"

    def check_json(self, body: dict[str, Any]) -> None:
        assert "acme" in body["run"]["framework"]["value"]

    @pytest.mark.parametrize("command", ["estimate", "lint"])
    def test_the_other_commands_take_it(self, package: Path, command: str) -> None:
        asked = TestTrainer()
        asked.question = self.question.replace("plan", command).replace("--cluster dgx-h100", "--gpu h100")
        asked.codes = (0, 1)  # lint has findings
        assert "acme" in json.loads(asked.ask(package, "--json"))["run"]["framework"]["value"]


class TestRule(Addition):
    """A rule is a file: its page, its function and its code."""

    files: ClassVar = {
        "rules/shape/odd_layers.py": '''
"""An odd number of layers.

## What it finds

Layers that two stages cannot share evenly.

## Why it costs

One stage waits for the other.

## Example

15 layers. Good: 16.

## Fix

One layer more or less.

## Source

Made up for a test.
"""

from sartor.rules.rule import Grade, Rule, Suspicion


def odd_layers(context):
    layers = int(context.shape.num_layers)
    if layers % 2:
        yield Suspicion(
            grade=Grade.WARN,
            message=f"num_layers={layers} is odd",
            field="num_layers",
            value=layers,
            fixes=({"num_layers": layers - 1}, {"num_layers": layers + 1}),
        )


RULE = Rule(code="R99", check=odd_layers, worst=Grade.WARN, page=__doc__ or "")
'''
    }
    question = "lint llama-3.2-1b --gpu h100 --set num_layers=15 --phase prefill"
    codes = (0, 1)
    in_text = "num_layers=15 is odd"
    in_json = ("run", "phase", "value", "prefill")

    def check_json(self, body: dict[str, Any]) -> None:
        finding = next(each for each in body["findings"] if each["rule"] == "odd_layers")
        assert (finding["field"], finding["value"]) == ("num_layers", 15)
