"""Adding a GPU: one TOML file, its other names inside, and every door answers for it (CONTRIBUTING, "Add a GPU").

``new_gpu`` puts the file of ``ADDED`` into a copy of the catalogue, as a contributor would, and the tests below ask for
the device by name and by alias: from Python, from the command line as text and as JSON, and over HTTP.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sartor.hardware import catalog
from sartor.hardware.catalog import GPUS, gpu_from, load_gpu
from sartor.operators import DType

ADDED = """\
name = "h150_test"
title = "NVIDIA H150 (made up for a test)"
aliases = ["h150", "h150_96gb"]
vendor = "NVIDIA"
generation = "hopper"
compute_capability = "9.0"
num_sms = 120
boost_clock_mhz = 1830
max_clock_mhz = 1980
hbm_gib = 96
hbm_gb_per_s = 4000
l2_mib = 50
smem_kib_per_sm = 228
link_gb_per_s = 450
pcie_gb_per_s = 64
tdp_w = 700
confidence = "low"

[peak_dense_tflops]
bf16 = 899.5
fp16 = 899.5
fp8 = 1798.9

[sources]
all = "made up"
"""


@pytest.fixture
def new_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path / "datasheets"
    shutil.copytree(GPUS.folder, folder)
    (folder / "h150_test.toml").write_text(ADDED, encoding="utf-8")
    monkeypatch.setattr(GPUS, "folder", folder)
    yield "h150_test"
    catalog._of_the_catalogue.cache_clear()


def test_its_file_is_the_only_one_it_needs(new_gpu: str) -> None:
    assert new_gpu in GPUS.names()
    assert GPUS.aliases()["h150"] == new_gpu
    for name in (new_gpu, "H150", "h150 96GB", "NVIDIA H150"):
        assert load_gpu(name).name == new_gpu
    assert load_gpu(new_gpu).peak_flops_per_s[DType.BF16] == 899.5e12
    assert gpu_from(tomllib.loads(GPUS.text(new_gpu))).hbm_bytes == 96 * 2**30


def test_the_command_line_knows_it_by_each_name(new_gpu: str, sartor: Callable[..., Any]) -> None:
    entry = sartor("catalog", "gpus", "h150", "--json").body["entries"][0]
    assert (entry["name"], entry["aliases"]) == (new_gpu, ["h150", "h150_96gb"])
    assert new_gpu in sartor("catalog", "gpus").out
    text = sartor("estimate", "gpt2-xl", "--gpu", "h150")
    assert text.code == 0
    assert "H150" in text.out or new_gpu in text.out
    bodies = [sartor("estimate", "gpt2-xl", "--gpu", name, "--json").body for name in ("h150", new_gpu)]
    assert bodies[0] == bodies[1]
    assert new_gpu in json.dumps(bodies[0])


def test_it_is_priced_with_its_generations_calibration(new_gpu: str, sartor: Callable[..., Any]) -> None:
    seconds = [
        sartor("gemm", 4096, 4096, 4096, "--gpu", name, "--json").body["time_s"] for name in (new_gpu, "h100_sxm")
    ]
    assert 1 < seconds[0] / seconds[1] < 1.3, "a tenth fewer SMs of the same kind"


def test_the_page_answers_for_it(new_gpu: str, sartor: Callable[..., Any]) -> None:
    pytest.importorskip("starlette", reason="the extra web is not installed")
    from sartor.web.answers import catalog as catalog_answer
    from sartor.web.work import Answerer

    listed = json.loads(catalog_answer({"what": "gpus"}).body)["entries"]
    assert new_gpu in [entry["name"] for entry in listed]
    reply = Answerer().fresh("estimate", {}, json.dumps({"model": "gpt2-xl", "gpu": "h150"}).encode())
    assert reply.status == 200, reply.body
    assert reply.body.decode() == sartor("estimate", "gpt2-xl", "--gpu", "h150", "--json").out


def test_a_mistake_in_it_is_one_sentence(new_gpu: str, sartor: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(ADDED.replace('["h150", "h150_96gb"]', '"h150"'), encoding="utf-8")
    ran = sartor("estimate", "gpt2-xl", "--gpu", path, "--json")
    assert "aliases=h150: must be a list of texts in quotes" in ran.refusal()
