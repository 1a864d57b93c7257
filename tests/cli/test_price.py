"""The price of a device-hour: one option of every command that prices a training run, and one cost of its tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Ran
from sartor import api
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from traces.logs_made import dump, megatron

RUN: dict[str, Any] = {"num_devices": 8, "global_batch_size": 64}


@pytest.mark.parametrize("price", [{}, {"price": 2.5}], ids=["the cluster's own", "stated"])
def test_plan_estimate_lint_and_advise_agree_on_the_cost(price: dict[str, float]) -> None:
    planned = api.plan("gpt2", "dgx-h100", **RUN, **price).to_dict()["cost"]
    told = ("usd_per_million_tokens", "usd_per_device_hour", "price_source", "price_date")
    cost = {name: planned[name] for name in told}
    assert cost["usd_per_device_hour"] == price.get("price", 6.88)
    assert planned["usd"] == pytest.approx(cost["usd_per_million_tokens"] * planned["tokens"] / 1e6)
    run = {"cluster": "dgx-h100", **RUN, **price}
    assert api.estimate("gpt2", **run).to_dict()["totals"]["cost"] == pytest.approx(cost)
    assert api.lint("gpt2", **run).to_dict()["cost"] == pytest.approx(cost)
    assert api.advise("gpt2", **run).to_dict()["baseline"]["cost"] == pytest.approx(cost)


def test_a_launch_costs_as_the_plan_in_it(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    answer = api.plan("gpt2", "dgx-h100", **RUN, price=2.5)
    written = tmp_path / "launch.sh"
    written.write_text(api.launch(answer, "megatron").files[0].text)
    asked = ("plan", "--launch", written, "--cluster", "dgx-h100", "--price", "2.5")
    assert answer.cost is not None
    assert sartor(*asked, "--json").body["cost"]["usd_per_million_tokens"] == pytest.approx(
        answer.cost.usd_per_million_tokens
    )
    assert "USD per 1M tokens at 2.50 per device-hour (stated)." in " ".join(sartor(*asked).out.split())


def test_the_cost_is_devices_and_seconds_of_a_million_tokens() -> None:
    found = api.estimate("gpt2", "h100", **RUN, price=3.6)
    assert found.cost is not None
    assert found.cost.usd_per_million_tokens == pytest.approx(3.6 / 3600 * 8 * 1e6 / float(found.tokens_per_s))
    assert found.question.run.of_origin(found.question.run.origin("price"))["price"] == 3.6


def test_a_server_costs_its_devices_over_its_tokens(sartor: Callable[..., Ran]) -> None:
    asked = ("serving", "llama-3.1-70b", "--gpu", "h100", "--tp", "4", "--concurrency", "1,64", "--price", "2.5")
    body = sartor(*asked, "--json").body
    for load in body["loads"]:
        assert load["usd_per_million_tokens"] == pytest.approx(4 * 2.5 / 3600 / load["output_tokens_per_s"] * 1e6)
    assert body["run"]["price"]["value"] == 2.5
    assert "USD per 1M tokens of answers at 2.50 per device-hour (stated)." in " ".join(sartor(*asked).out.split())
    assert "usd_per_million_tokens" not in sartor(*asked[:-2], "--json").body["loads"][0]
    with pytest.raises(InputError, match=r"price=-1: must be a finite number not below 0"):
        api.serving("gpt2", "h100", price=-1)


def test_no_price_no_cost() -> None:
    own = load_cluster("dgx-h100")
    unpriced = replace(own, price_usd_per_device_hour=None, gpu=replace(own.gpu, price_usd_per_hour=None))
    found = api.estimate("gpt2", cluster=unpriced, **RUN)
    assert found.cost is not None
    assert found.cost.usd is None
    assert "cost" not in found.to_dict()["totals"]
    assert "cost" not in api.estimate("gpt2", "h100", phase="decode").to_dict()["totals"]


def test_a_stated_price_is_that_of_every_pool() -> None:
    own = load_cluster("dgx-h100")
    mixed = replace(own, num_devices=8, others=(replace(load_cluster("dgx-a100"), num_devices=8),))
    assert [pool.price_usd_per_device_hour for pool in mixed.with_price(2.0).pools] == [2.0, 2.0]


def test_a_price_is_of_one_training_run() -> None:
    with pytest.raises(InputError, match=r"price=-1: must be a finite number not below 0"):
        api.estimate("gpt2", "h100", price=-1)
    with pytest.raises(InputError, match=r"price=2\.0: applies only to training"):
        api.lint("gpt2", "h100", phase="prefill", price=2.0)
    with pytest.raises(InputError, match=r"price=2\.0: is of one run, and a grid asks for many"):
        api.estimate("gpt2", "h100", tp=[1, 2], price=2.0, **RUN)


@pytest.mark.parametrize("command", ["estimate", "lint", "advise"])
def test_the_terminal_tells_it_beside_the_step(command: str, sartor: Callable[..., Ran]) -> None:
    run = ("--gpu", "h100", "--num-devices", "8", "--global-batch-size", "64")
    stated = " ".join(sartor(command, "gpt2", *run, "--price", "3").out.split())
    assert "USD per 1M tokens at 3.00 per device-hour (stated)." in stated
    assert "USD per 1M tokens at 6.88 per device-hour (2025, old)." in " ".join(
        sartor(command, "gpt2", *run).out.split()
    )


def test_a_log_costs_as_measured(tmp_path: Path, sartor: Callable[..., Ran]) -> None:
    log = tmp_path / "train.log"
    log.write_text(dump() + megatron())
    run = ("diagnose", log, "--gpu", "h100", "--no-best-plan", "--price", "3.6")
    measured = sartor(*run, "--json").body["measured"]
    found = api.diagnose_log(log, gpu="h100", best_plan=False)
    devices = int(found.predicted.plan.num_devices)
    per_token = 3.6 / 3600 * devices * found.measured.step_s / found.job.tokens_per_step
    assert measured["cost"]["usd_per_million_tokens"] == pytest.approx(1e6 * per_token)
    assert "training costs" in " ".join(sartor(*run).out.split())
