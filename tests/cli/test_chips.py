"""Chips of the accelerator template named where a GPU is: what is answered, and what is refused in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sartor as package
from sartor.hardware.accelerator_catalog import load_accelerator, load_device
from sartor.hardware.catalog import ACCELERATORS
from sartor.operators import DType

Sartor = Callable[..., Any]
CHIP = "tpu_v4_like"
EXAMPLES = Path(__file__).parent.parent.parent / "examples"
MY_CHIP = """
clock_mhz = 1200
node_nm = 5
num_tensor_cores = 16
array_rows = 256
array_cols = 256
num_vector_cores = 16
vector_lanes = 1024
global_buffer_mib = 256
memory = "hbm3"
num_stacks = 6
num_dies = 2
die_to_die_gb_per_s = 5000
num_links = 8
link_gb_per_s = 50
link_latency_us = 1
"""


@pytest.fixture
def my_chip(tmp_path: Path) -> Path:
    path = tmp_path / "my_chip.toml"
    path.write_text(MY_CHIP)
    return path


# ------------------------------------------------------------------------------------------------------------- gemm


@pytest.mark.parametrize("name", ACCELERATORS.names())
def test_a_gemm_says_which_tile_of_the_arrays_it_took_and_what_else_there_was(name: str) -> None:
    chip = load_accelerator(name)
    found = package.gemm(1000, 1600, 2304, name)
    cost, best = found.cost, found.alternatives[0]
    assert best.time_s == cost.time_s
    assert (best.tile_m, best.tile_n, best.split_k) == tuple(cost.details[k] for k in ("tile_m", "tile_n", "split_k"))
    assert [each.time_s for each in found.alternatives] == sorted(each.time_s for each in found.alternatives)
    assert len({(each.tile_m, each.tile_n, each.split_k) for each in found.alternatives}) == len(found.alternatives)
    for each in found.alternatives:
        peak = 2 * 1000 * 1600 * 2304 / float(chip.peak_flops_per_s)
        assert each.time_s >= each.compute_s > peak
        assert each.compute_s * each.tile_efficiency * each.wave_efficiency >= peak * (1 - 1e-9)
    assert cost.details["utilization"] <= cost.details["tile_efficiency"] * cost.details["wave_efficiency"]


def test_gemm_on_a_chip_has_the_contracts_keys(sartor: Sartor) -> None:
    chip, gpu = (sartor("gemm", 4096, 4096, 4096, "--gpu", name, "--json").body for name in (CHIP, "h100"))
    assert chip.keys() == gpu.keys()
    assert chip["tiles"][0].keys() == gpu["tiles"][0].keys()
    assert (chip["tile_m"], chip["tile_n"], chip["waves"]) == (128, 256, 64)
    assert chip["source"] == "analytic"
    assert chip["low_s"] < chip["time_s"] < chip["high_s"]


@pytest.mark.slow
def test_an_estimate_on_a_chip_says_that_the_step_overlaps_what_it_lists(sartor: Sartor, my_chip: Path) -> None:
    plan = ["--num-devices", "16", "--global-batch-size", "16"]
    trained = " ".join(sartor("estimate", "gpt2", "--gpu", str(my_chip), *plan).out.split())
    assert "those of a layer overlap on the chip's cores, as the step time counts" in trained
    assert "links of 400 GB/s join all devices (the chip's own; set --cluster for another network)" in trained
    served = " ".join(sartor("estimate", "gpt2", "--gpu", str(my_chip), "--phase", "prefill").out.split())
    assert "as `sartor design` counts and the time here does not" in served
    assert "those of a layer overlap" not in sartor("estimate", "gpt2", "--gpu", "a100", *plan).out


def test_gemm_on_a_chip_speaks_of_tensor_cores(sartor: Sartor) -> None:
    text = sartor("gemm", 4096, 4096, 4096, "--gpu", CHIP).out
    assert "8 tensor cores" in text
    assert "SM" not in text


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("words", "field", "why"),
    [
        (["estimate", "gpt2", "--gpu", CHIP, "--eager"], "--eager", "a GPU's host launches"),
        (["estimate", "gpt2", "--gpu", CHIP, "--calibration", "mine.toml"], "--calibration", "measurements of a GPU"),
        (["estimate", "gpt2", "--gpu", CHIP, "--dtype", "fp32"], "--dtype", "no matrix units"),
        (["gemm", "8", "8", "8", "--gpu", CHIP, "--dtype", "int8_wo"], "--dtype", "no matrix units"),
        (["estimate", "gpt2", "--gpu", "edge_tpu_like"], "--gpu", "multiply int8 at most"),
        (["lint", "gpt2", "--gpu", CHIP, "--format", "sarif"], "--format", "SARIF rules describe GPU kernels"),
        (["collective", "all_reduce", "1e6", "8", "--gpu", CHIP, "--eager"], "--eager", "a GPU's host launches"),
        (["collective", "all_reduce", "1e6", "8", "--gpu", CHIP, "--library", "custom"], "--library", "GPU engines"),
        (["calibrate", "--plan", "10", "--gpu", CHIP], "--gpu", "nothing was measured on it"),
        (["catalog", "gpus", CHIP], "gpu", "chip of the accelerator template"),
    ],
)
def test_what_only_a_gpu_has_is_refused_in_one_sentence(
    sartor: Sartor, words: list[str], field: str, why: str, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    plain = sartor(*words)
    assert (plain.code, plain.out) == (2, "")
    assert plain.err.count("\n") == 1
    assert plain.err.startswith(f"sartor: {field}=")
    assert why in plain.err
    assert "nearest: " in plain.err
    if words[0] != "catalog" and "sarif" not in words:
        assert why in sartor(*words, "--json", "--out", out).refusal()
    assert not out.exists()


@pytest.mark.parametrize("command", ["validate", "measure"])
def test_nothing_is_measured_on_a_chip(sartor: Sartor, my_chip: Path, command: str, tmp_path: Path) -> None:
    words = {"validate": ["validate", "operators", "--data", tmp_path], "measure": ["measure"]}[command]
    for name in (CHIP, my_chip):
        refused = sartor(*words, "--gpu", name)
        assert refused.code == 2
        assert "only a GPU can be named here" in refused.err


def test_sarif_of_a_chip_leaves_no_file(sartor: Sartor, tmp_path: Path) -> None:
    out = tmp_path / "lint.json"
    assert sartor("lint", "gpt2", "--gpu", CHIP, "--format", "sarif", "--out", out).code == 2
    assert not out.exists()


# ------------------------------------------------------------------------------------------------ shapes cut to a chip


def test_advice_for_a_chip_is_in_multiples_of_its_array(sartor: Sartor, my_chip: Path, tmp_path: Path) -> None:
    page = tmp_path / "advice.html"
    ran = sartor("advise", "pythia-2.8b", "--gpu", my_chip, "--microbatch-size", 1, "--html", page, "--json")
    assert ran.code == 0
    best = ran.body["candidates"][0]
    assert best["speedup"] > 1.05
    assert best["per_gpu"] == pytest.approx({"my_chip": best["speedup"]}, rel=1e-12)
    for candidate in ran.body["candidates"]:
        for field in {"hidden_size", "ffn_hidden_size", "vocab_size"} & candidate["changed"].keys():
            assert candidate["changed"][field][1] % 256 == 0
    assert "256-wide systolic arrays of my_chip" in page.read_text()


def test_advice_for_a_gpu_and_a_chip_has_a_speedup_on_each(sartor: Sartor) -> None:
    found = sartor("advise", "gpt2", "--gpu", "h100", "--gpu", CHIP, "--freeze", "num_layers", "--json").body
    assert all(candidate["per_gpu"].keys() == {"h100_sxm", CHIP} for candidate in found["candidates"])
    assert found["minimax"]["per_gpu"][CHIP] > 1


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("array_rows = 256", "", "array_rows=missing: every accelerator must state it"),
        ("array_rows = 256", "array_rows = [128, 256]", "array_rows=[128, 256]: must be a number"),
        ("array_rows = 256", "array_rwos = 256", "array_rwos=256: is not a key of an accelerator; nearest: array_rows"),
        ("global_buffer_mib = 256", "global_buffer_mib = 1e6", "global_buffer_mib=1000000.0: must be smaller than"),
        ('memory = "hbm3"', 'memory = "hbm9"', "memory=hbm9: must be one of"),
    ],
)
def test_a_wrong_file_of_a_chip_is_told_in_its_own_keys(
    sartor: Sartor, my_chip: Path, old: str, new: str, sentence: str
) -> None:
    my_chip.write_text(MY_CHIP.replace(old, new))
    assert sentence in sartor("estimate", "gpt2", "--gpu", my_chip, "--json").refusal()


# ---------------------------------------------------------------------------------------------------- many of a chip


def test_a_plausible_value_of_a_default_is_a_number_people_write(sartor: Sartor) -> None:
    told = sartor("lint", EXAMPLES / "gpt2", "--gpu", EXAMPLES / "my_chip.toml").out
    values = re.findall(r"^With \w+=([\d.]+)", told, re.MULTILINE)
    assert values
    assert all(len(value.replace(".", "")) <= 6 for value in values), values


def test_the_examples_of_a_chip_and_a_pod_answer(sartor: Sartor) -> None:
    chip, pod = EXAMPLES / "my_chip.toml", EXAMPLES / "my_pod.toml"
    time_s = sartor("gemm", 4096, 4096, 4096, "--gpu", chip, "--json").body["time_s"]
    assert time_s == package.gemm(4096, 4096, 4096, EXAMPLES / "my_chip.toml").cost.time_s
    inside, across = (
        sartor("collective", "all_reduce", "64e6", size, "--cluster", pod, "--json").body for size in (64, 512)
    )
    assert (inside["gpu"], inside["source"]) == ("my_chip", "analytic")
    assert inside["time_s"] < across["time_s"]
    assert [tier["members"] for tier in across["tiers"]] == [256, 512]
    words = ["--num-devices", 16, "--global-batch-size", 64, "--fix", "pp=1,tp=2"]
    assert sartor("plan", "gpt2", "--cluster", pod, *words, "--json").body["status"] == "optimal"


@pytest.mark.parametrize("kind", ["megatron", "torchtitan", "deepspeed", "accelerate"])
def test_no_launch_file_starts_a_chip(sartor: Sartor, tmp_path: Path, kind: str) -> None:
    folder, out = tmp_path / "launch", tmp_path / "plan.json"
    words = ["--num-devices", 16, "--global-batch-size", 64, "--write", kind, folder, "--json", "--out", out]
    refused = sartor("plan", "gpt2", "--cluster", EXAMPLES / "my_pod.toml", *words).refusal()
    assert refused.startswith(f"sartor: --write={kind}: launch files start a framework on GPUs, and my_chip is a chip")
    assert not folder.exists()
    assert not out.exists()


def test_eight_bits_on_a_chip_are_scaled_per_tensor(sartor: Sartor) -> None:
    words = ["--num-devices", 16, "--global-batch-size", 64, "--fix", "pp=1,tp=2", "--json"]
    found = sartor("plan", "gpt2", "--cluster", EXAMPLES / "my_pod.toml", "--dtype", "fp8", *words).body
    assert found["job"]["dtype"] == "fp8_delayed"


@pytest.mark.parametrize("trainer", [[], ["--framework", "megatron"]])
def test_estimate_and_plan_agree_on_a_chip(sartor: Sartor, trainer: list[str]) -> None:
    pod, words = EXAMPLES / "my_pod.toml", ["--num-devices", 16, "--global-batch-size", 64, *trainer, "--json"]
    shared = sartor("estimate", "gpt2", "--cluster", pod, "--gpu", EXAMPLES / "my_chip.toml", "--tp", 2, *words).body
    best = sartor("plan", "gpt2", "--cluster", pod, "--fix", "tp=2", *words).body["best"]
    assert shared["totals"]["step_s"] == best["step_s"]
    assert shared["totals"]["peak_bytes"] == best["peak_bytes"]


MIXED = """
gpu = "{first}"
devices_per_node = 4
num_devices = 8
tiers = [{{span = 4, gb_per_s = 300}}, {{span = "all", gbit_per_s = 400}}]
[[others]]
gpu = "{second}"
devices_per_node = 4
num_devices = 8
tiers = [{{span = 4, gb_per_s = 300}}, {{span = "all", gbit_per_s = 400}}]
"""


@pytest.mark.parametrize(("first", "second", "word"), [("h100", CHIP, "a GPU"), (CHIP, "h100_sxm", "an accelerator")])
def test_a_cluster_has_gpus_or_accelerators(sartor: Sartor, tmp_path: Path, first: str, second: str, word: str) -> None:
    path, out = tmp_path / "mixed.toml", tmp_path / "plan.json"
    path.write_text(MIXED.format(first=first, second=second))
    for words in (
        ["plan", "gpt2", "--num-devices", 16, "--global-batch-size", 64],
        ["collective", "all_reduce", "1e6", "16"],
    ):
        told = sartor(*words, "--cluster", path, "--json", "--out", out).refusal()
        assert told.startswith(f"sartor: others.0.gpu={second}: must be {word} like ")
        assert "a cluster has GPUs or accelerators, not both" in told
    assert not out.exists()


def test_pools_of_two_chips_are_planned_on(sartor: Sartor, tmp_path: Path) -> None:
    path = tmp_path / "two_chips.toml"
    path.write_text(MIXED.format(first="a100_like", second=CHIP))
    words = ["--num-devices", 16, "--global-batch-size", 64, "--fix", "pp=2,tp=2", "--json"]
    found = sartor("plan", "gpt2", "--cluster", path, *words).body
    assert found["status"] == "optimal"
    assert found["best"]["step_s"] > 0


@pytest.mark.parametrize(("word", "near"), [("tpu_v4_lik", CHIP), ("h100lik", "h100_like"), ("h10", "h100_sxm")])
def test_a_misspelt_name_is_answered_from_both_catalogues(sartor: Sartor, word: str, near: str) -> None:
    assert near in sartor("estimate", "gpt2", "--gpu", word, "--json").refusal().split("nearest: ")[1]


# ------------------------------------------------------------------------------------------- a chip as a datasheet


def test_a_chips_own_type_comes_first() -> None:
    assert next(iter(load_device("edge_tpu_like").peak_flops_per_s)) is DType.INT8
    assert load_device(CHIP).default_dtype is DType.BF16
