"""Keys that the file of a user's own chip does not set are listed; those that change the time are named first."""

from __future__ import annotations

from pathlib import Path

import pytest

import sartor
from sartor.report.fit_words import headline

CHIP = """
name = "mine"
node_nm = 5
clock_mhz = 1830
dtype = "bf16"
num_tensor_cores = 132
array_rows = 64
array_cols = 32
num_vector_cores = 132
vector_lanes = 128
global_buffer_mib = 50
memory = "hbm3"
num_stacks = 5
num_links = 18
link_gb_per_s = 25
"""
WHOLE = """
vector_core_sram_kib = 256
bank_bytes_per_cycle = 128
stack_gib = 16
stack_gb_per_s = 670
link_latency_us = 2
sustained_share = 0.75
sustained_hbm_share = 0.89
sustained_link_share = 0.76
run_factor = 1.07
softmax_overlap = 0
special_cycles = 8
backward_passes = 1
buffer_add_share = 0.5
load_bytes = 16
operator_start_us = 4
dataflow = "weight_stationary"
"""
RUN = {"tp": 2, "num_devices": 2, "global_batch_size": 16}


def chip(folder: Path, *more: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(CHIP + "".join(more))
    return path


def left(answer: sartor.ModelEstimate) -> list[str]:
    return [line for line in answer.question.assumptions if "its file does not set them" in line]


def test_a_private_buffer_that_nobody_named_is_assumed_and_said_to_turn_the_step(tmp_path: Path) -> None:
    answer = sartor.estimate("llama-3-8b", chip(tmp_path), **RUN)
    (line,) = left(answer)
    assert "tensor_core_sram_kib=32," in line  # 16 bytes of each of 64 x 32 multipliers
    assert "vector_core_sram_kib=2," in line
    assert "run_factor=1," in line
    assert "num_links" not in line
    assert "dtype=" not in line
    turn = next(turn for turn in answer.question.depends_on if turn.field == "tensor_core_sram_kib")
    assert turn.value == 228  # the middle of the catalogue, relative to the default
    stated = sartor.estimate("llama-3-8b", chip(tmp_path, "tensor_core_sram_kib = 228\n"), **RUN)
    assert turn.figures["time_s"] == pytest.approx(float(stated.time_s), rel=1e-9)
    assert turn.figures["ratio"] < 0.7
    said = [words for words in headline(answer) if words.startswith("With tensor_core_sram_kib=228, which was not st")]
    assert len(said) == 1
    assert said[0].endswith("(default: 32; h100_like has 7.12 times its default).")
    assert "tensor_core_sram_kib" in {row["field"] for row in answer.to_dict()["depends_on"]}


def test_a_chip_that_states_everything_leaves_nothing(tmp_path: Path) -> None:
    answer = sartor.estimate("llama-3-8b", chip(tmp_path, WHOLE, "tensor_core_sram_kib = 228\n"), **RUN)
    assert left(answer) == []
    assert answer.question.depends_on == ()
    named = sartor.estimate("llama-3-8b", "h100_like", **RUN)
    assert left(named) == []
    assert named.question.depends_on == ()


def test_only_what_moves_the_time_by_a_tenth_is_said_above_the_answer(tmp_path: Path) -> None:
    """With the buffers of an H100 stated, another such step would not be moved by them, but by what runs sustain."""
    answer = sartor.estimate("llama-3-8b", chip(tmp_path, "tensor_core_sram_kib = 228\n"), **RUN)
    fields = {turn.field: turn for turn in answer.question.depends_on}
    assert "tensor_core_sram_kib" not in fields
    assert "vector_core_sram_kib=2," in left(answer)[0]
    assert "run_factor" not in fields  # 1.07
    share = fields["sustained_share"].value
    assert share == 0.85  # of TPUs
    slower = sartor.estimate(
        "llama-3-8b", chip(tmp_path, f"tensor_core_sram_kib = 228\nsustained_share = {share}\n"), **RUN
    )
    assert fields["sustained_share"].figures["time_s"] == pytest.approx(float(slower.time_s), rel=1e-9)
    assert all(abs(turn.figures["ratio"] - 1) >= 0.1 for turn in fields.values())


def test_passes_lint_gemms_and_plans_say_it_too(tmp_path: Path) -> None:
    path = chip(tmp_path)
    served = sartor.estimate("llama-3-8b", path, phase="prefill", tp=2)
    turn = next(turn for turn in served.question.depends_on if turn.field == "tensor_core_sram_kib")
    stated = sartor.estimate("llama-3-8b", chip(tmp_path, "tensor_core_sram_kib = 228\n"), phase="prefill", tp=2)
    assert turn.figures["time_s"] == pytest.approx(float(stated.time_s), rel=1e-9)
    path = chip(tmp_path)
    lint = sartor.lint("llama-3-8b", path, **RUN)
    assert "tensor_core_sram_kib" in {turn.field for turn in lint.base.question.depends_on}
    product = sartor.gemm(4096, 4096, 4096, path)
    assert any("tensor_core_sram_kib=32," in line for line in product.assumptions)
    turn = next(turn for turn in product.depends_on if turn.field == "tensor_core_sram_kib")
    larger = sartor.gemm(4096, 4096, 4096, chip(tmp_path, "tensor_core_sram_kib = 228\n"))
    assert turn.figures["time_s"] == pytest.approx(float(larger.cost.time_s), rel=1e-9)
    assert "tensor_core_sram_kib" in {row["field"] for row in product.to_dict()["depends_on"]}
    assert not sartor.gemm(4096, 4096, 4096, "h100_like").depends_on


@pytest.mark.slow
def test_a_plan_on_a_cluster_of_own_chips_says_it(tmp_path: Path) -> None:
    chip(tmp_path)
    cluster = tmp_path / "mine_x8.toml"
    cluster.write_text(
        'gpu = "mine.toml"\ndevices_per_node = 8\n[[tiers]]\nname = "links"\nspan = "all"\ngb_per_s = 450\n'
    )
    answer = sartor.plan("gpt2-large", cluster, num_devices=8, global_batch_size=32)
    assert any("mine: tensor_core_sram_kib=32," in line for line in answer.assumptions)
    of_plan = next(turn for turn in answer.depends_on if turn.field == "tensor_core_sram_kib")
    assert "tensor_core_sram_kib" in {row["field"] for row in answer.to_dict()["depends_on"]}
    trained = sartor.estimate("gpt2-large", cluster=cluster, num_devices=8, global_batch_size=32)
    turn = next(turn for turn in trained.question.depends_on if turn.field == "tensor_core_sram_kib")
    assert of_plan.figures["time_s"] == pytest.approx(turn.figures["time_s"], rel=1e-6)
    chip(tmp_path, "tensor_core_sram_kib = 228\n")
    axes = {name: trained.question.held.axes[name] for name in ("tp", "pp", "dp", "cp", "microbatch_size")}
    stated = sartor.estimate("gpt2-large", cluster=cluster, num_devices=8, global_batch_size=32, **axes)
    assert turn.figures["time_s"] == pytest.approx(float(stated.time_s), rel=1e-6)


def test_a_chip_named_as_a_cluster_has_its_own_network_and_the_seconds_of_an_estimate(tmp_path: Path) -> None:
    estimated = sartor.estimate("gpt2", chip(tmp_path), **RUN)
    answer = sartor.plan("gpt2", chip(tmp_path), **RUN)
    assert answer.best is not None
    assert float(answer.best.step_s) == pytest.approx(float(estimated.priced.step.step_s), rel=1e-12)
    network = [words for words in estimated.question.assumptions if words.startswith("links of ")]
    assert len(network) == 1
    assert network[0] in answer.assumptions
    assert not any("none was stated" in words for words in answer.assumptions)


def test_an_estimate_on_an_own_chip_names_a_plan_that_can_be_typed(tmp_path: Path) -> None:
    words = " ".join(headline(sartor.estimate("llama-3-70b", chip(tmp_path), num_devices=2)))
    assert f"`sartor plan llama-3-70b --cluster {chip(tmp_path)} --num-devices 2" in words


@pytest.mark.parametrize(("device", "cluster"), [("h200", "dgx-h200"), ("a100", "dgx-a100")])
def test_a_device_named_as_a_cluster_is_its_usual_cluster_and_said_so(device: str, cluster: str) -> None:
    sizes = {"num_devices": 8, "global_batch_size": 32, "pp": 1, "cp": 1, "tp": 1}
    answer = sartor.plan("gpt2", device, **sizes)
    assert answer.best is not None
    assert answer.best.step_s == sartor.plan("gpt2", cluster, **sizes).best.step_s
    assert any(words.startswith(f"cluster={cluster}: the usual one of {device}") for words in answer.assumptions)


@pytest.mark.slow
def test_a_chip_of_ones_own_is_priced_beside_the_best_one(tmp_path: Path) -> None:
    mine, catalogue = chip(tmp_path), "a100_like"
    job = {"num_devices": 8, "global_batch_size": 64, "seq_len": 1024, "baselines": False}
    found = sartor.design("gpt2", space="h100_like", against=[mine, catalogue, "h100_sxm"], **job)  # type: ignore[arg-type]
    assert [against.gpu.name for against in found.against] == ["h100_sxm"]
    beside = {line.name: line.ranked for line in found.result.baselines}
    assert list(beside) == [
        f"{name}, {way} placement" for name in ("mine", catalogue) for way in ("expert", "searched")
    ]
    alone = sartor.design("gpt2", space=catalogue, **job)  # type: ignore[arg-type]
    drawn = beside[f"{catalogue}, searched placement"]
    assert drawn is not None
    assert alone.best is not None
    assert drawn.objective == pytest.approx(alone.best.objective, rel=1e-9)


@pytest.mark.parametrize("key", ["tensor_core_sram_kib", "sustained_share", "bank_bytes_per_cycle", "link_gb_per_s"])
def test_a_key_that_is_not_stated_never_narrows_the_interval(tmp_path: Path, key: str) -> None:
    """The interval holds every plausible value of what a chip's file leaves out."""
    lines = (CHIP + WHOLE + "tensor_core_sram_kib = 228\n").splitlines(keepends=True)
    open_key, whole = tmp_path / "open.toml", tmp_path / "whole.toml"
    whole.write_text("".join(lines))
    open_key.write_text("".join(line for line in lines if not line.startswith(key)))

    def widths(path: Path) -> list[float]:
        trained, served = sartor.estimate("gpt2-xl", path, **RUN), sartor.estimate("gpt2-xl", path, phase="prefill")
        product = sartor.gemm(4096, 4096, 4096, path).cost
        return [float(answer.high_s / answer.low_s) for answer in (trained, served, product)]

    for wide, narrow in zip(widths(open_key), widths(whole), strict=True):
        assert wide >= narrow * (1 - 1e-9)
