"""A verdict on a launch is no stronger than what has a price: 8-bit weights have one, other switches leave it open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sartor import api
from sartor.answers.plan import LaunchAnswer
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.launch.files import read_launch
from sartor.step.footprint import footprint
from sartor.step.step import step

LLAMA = (
    "torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336"
    " --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels 128 --vocab-size 128256"
    " --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
    " --untie-embeddings-and-output-weights --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1"
    " --global-batch-size 128 --context-parallel-size 2 --bf16 --grad-reduce-in-bf16 --cross-entropy-loss-fusion"
)
SHARDED = f"{LLAMA} --use-distributed-optimizer"
FP8 = f"{SHARDED} --fp8-format hybrid"
LAYERS = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
"""Elements of the layers' matrices."""


def priced(tmp_path: Path, text: str, headroom: float | None = None) -> LaunchAnswer:
    (tmp_path / "run.sh").write_text(text)
    return api.lint_launch(tmp_path / "run.sh", "dgx-h100", search=False, headroom=headroom)


# -- weights in 8 bits alone --------------------------------------------------------------------------------------


def test_weights_in_8_bits_alone_save_two_bytes_of_each_and_gather_half(tmp_path: Path) -> None:
    both, narrow = priced(tmp_path, FP8), priced(tmp_path, f"{FP8} --fp8-param-gather")
    assert both.priced.peak_bytes - narrow.priced.peak_bytes == pytest.approx(2 * LAYERS, rel=0.01)
    assert not both.fits
    assert narrow.fits
    assert not narrow.unpriced
    assert narrow.priced.step_s < both.priced.step_s
    rest = ("grad_bytes", "optimizer_bytes", "stash_bytes")
    assert all(getattr(both.priced.footprint, name) == getattr(narrow.priced.footprint, name) for name in rest)


def test_weights_of_a_run_in_16_bits_stay_as_they_are(tmp_path: Path) -> None:
    plain, switched = priced(tmp_path, SHARDED), priced(tmp_path, f"{SHARDED} --fp8-param-gather")
    assert plain.priced.peak_bytes == switched.priced.peak_bytes
    assert plain.priced.step_s == switched.priced.step_s


def test_weights_in_8_bits_alone_want_sharded_states(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--use-distributed-optimizer"):
        priced(tmp_path, f"{LLAMA} --fp8-format hybrid --fp8-param-gather")


def test_mxfp8_without_the_gradients_buffer_keeps_16_bits(tmp_path: Path) -> None:
    text = f"{SHARDED} --fp8-format e4m3 --fp8-recipe mxfp8 --fp8-param-gather"
    (tmp_path / "wide.sh").write_text(text)
    (tmp_path / "narrow.sh").write_text(f"{text} --reuse-grad-buf-for-mxfp8-param-ag")
    wide, narrow = read_launch(tmp_path / "wide.sh"), read_launch(tmp_path / "narrow.sh")
    assert not wide.parts.trainer.memory.narrow_primary
    assert any("16-bit weights" in note for note in wide.assumptions)
    assert narrow.parts.trainer.memory.narrow_primary
    assert not narrow.unpriced


@pytest.mark.parametrize("recipe", ["hybrid", "e4m3 --fp8-recipe mxfp8 --reuse-grad-buf-for-mxfp8-param-ag"])
def test_what_is_written_with_8_bit_weights_is_read_back_at_its_price(tmp_path: Path, recipe: str) -> None:
    from sartor.launch.megatron import megatron_files

    (tmp_path / "run.sh").write_text(f"{SHARDED} --fp8-format {recipe} --fp8-param-gather")
    reading, cluster = read_launch(tmp_path / "run.sh"), load_cluster("dgx-b200")
    job = reading.job()
    (tmp_path / "again.sh").write_text(megatron_files(job, reading.plan, 8).files[0].text)
    again = read_launch(tmp_path / "again.sh")
    assert again.parts.trainer.memory.narrow_primary
    assert (
        footprint(again.job(), again.plan, cluster).device_bytes == footprint(job, reading.plan, cluster).device_bytes
    )
    assert step(again.job(), again.plan, cluster).step_s == step(job, reading.plan, cluster).step_s
    plain = replace(job, trainer=replace(job.trainer, memory=replace(job.trainer.memory, narrow_primary=False)))
    assert "--fp8-param-gather" not in megatron_files(plain, reading.plan, 8).files[0].text


def test_the_published_run_with_8_bit_weights_fits(shared_dir: Path) -> None:
    path = shared_dir / "cases" / "fp8_param_gather.sh"
    if not path.exists():
        pytest.skip("the shared reference has no cases/fp8_param_gather.sh here")
    assert api.lint_launch(path, "dgx-h100", search=False).status == "feasible"


# -- what a switch without a price leaves open --------------------------------------------------------------------


def test_a_switch_that_may_save_enough_leaves_the_verdict_open(tmp_path: Path) -> None:
    answer = priced(tmp_path, f"{FP8} --use-bnb-optimizer", headroom=0.05)
    assert not answer.fits
    assert answer.status == "unknown"
    (turn,) = answer.depends_on
    assert turn.field == "--use-bnb-optimizer"
    assert turn.verdict.startswith("fits if it saves ")
    assert turn.figures["change_bytes"] == answer.priced.peak_bytes - (1 - answer.headroom) * answer.usable_bytes
    finding = answer.findings[0]
    assert (finding.rule, finding.grade.value) == ("does_not_fit", "warn")
    assert "--use-bnb-optimizer" in finding.message
    assert answer.to_dict()["depends_on"][0]["field"] == "--use-bnb-optimizer"


@pytest.mark.parametrize(
    "words", ["", "--delay-wgrad-compute", "--main-params-dtype fp32", "--fp32-residual-connection"]
)
def test_a_switch_that_saves_no_memory_leaves_it_an_error(tmp_path: Path, words: str) -> None:
    answer = priced(tmp_path, f"{FP8} {words}", headroom=0.14)  # too much by more than the error of a peak
    assert answer.status == "infeasible"
    assert not answer.depends_on
    assert answer.findings[0].grade.value == "error"


def test_a_switch_that_saves_less_than_is_missing_leaves_it_an_error(tmp_path: Path) -> None:
    answer = priced(tmp_path, f"{FP8} --main-params-dtype fp16", headroom=0.14)
    missing = answer.priced.peak_bytes - 0.86 * answer.usable_bytes
    assert missing < answer.priced.footprint.optimizer_bytes  # of which 16-bit main weights save a third at most
    assert answer.status == "infeasible"
    assert not answer.depends_on


def test_switches_that_save_enough_only_together_are_all_named(tmp_path: Path) -> None:
    words = ("--use-bnb-optimizer", "--fp4-param-gather")
    assert not any(priced(tmp_path, f"{FP8} {word}", headroom=0.2).depends_on for word in words)
    both = priced(tmp_path, f"{FP8} {' '.join(words)}", headroom=0.2)
    assert both.status == "unknown"
    assert [turn.field for turn in both.depends_on] == ["--use-bnb-optimizer", "--fp4-param-gather"]
    assert both.depends_on[0].verdict.endswith(", together with --fp4-param-gather")


def test_a_run_that_fits_may_not_with_a_switch_that_takes_memory(tmp_path: Path) -> None:
    answer = priced(tmp_path, f"{SHARDED} --fp32-residual-connection")
    assert answer.status == "feasible"
    assert [turn.field for turn in answer.depends_on] == ["--fp32-residual-connection"]
    assert "does not fit if it adds more than" in answer.depends_on[0].verdict
    recomputed = f"{SHARDED} --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    roomy = priced(tmp_path, f"{recomputed} --fp32-residual-connection")
    assert not roomy.depends_on
    assert not priced(tmp_path, f"{SHARDED} --use-bnb-optimizer").depends_on


TITAN = """
[model]
name = "deepseek_v3"
flavor = "16B"
[training]
local_batch_size = 4
seq_len = 4096
dtype = "{}"
[parallelism]
data_parallel_shard_degree = 8
expert_parallel_degree = 8
"""


def test_torchtitans_type_of_states_is_priced(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    trainers = []
    for word in ("float32", "bfloat16"):
        path.write_text(TITAN.format(word))
        reading = read_launch(path, num_devices=8)
        assert not reading.unpriced
        assert not reading.open_fields
        trainers.append(reading.parts.trainer)
    assert [trainer.main_dtype.value for trainer in trainers] == ["fp32", "bf16"]
