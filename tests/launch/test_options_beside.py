"""What is stated beside a launch replaces what the file says, before anything of the file is checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sartor import api
from sartor.answers.plan import LaunchAnswer
from sartor.errors import InputError
from sartor.run.fields import Origin

MODEL = "llama-3.2-1b"
SIZES = (
    "--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32 --swiglu --vocab-size 50304 "
    "--disable-bias-linear --normalization RMSNorm --position-embedding-type rope --max-position-embeddings 8192"
)
MEGATRON = f"torchrun --nproc-per-node 16 pretrain_gpt.py {SIZES} --use-distributed-optimizer " + (
    "--seq-length {seq_len} --micro-batch-size {microbatch_size} --global-batch-size {global_batch_size} "
    "--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --context-parallel-size {cp} --{dtype} "
    "--optimizer {optimizer} --attention-dropout 0 --hidden-dropout 0\n"
)
NEMO = """
trainer: {{devices: 16, num_nodes: 1, precision: {dtype}}}
model: {{num_layers: 16, hidden_size: 2048, ffn_hidden_size: 8192, num_attention_heads: 32,
  encoder_seq_length: {seq_len},
  max_position_embeddings: 8192, override_vocab_size: 50304, micro_batch_size: {microbatch_size},
  global_batch_size: {global_batch_size}, tensor_model_parallel_size: {tp}, pipeline_model_parallel_size: {pp},
  context_parallel_size: {cp}, attention_dropout: 0.0, hidden_dropout: 0.0}}
"""
BRIDGE = """
from megatron.bridge.training.config import ConfigContainer
def recipe():
    cfg.model = GPTModelProvider(num_layers=16, hidden_size=2048, ffn_hidden_size=8192, num_attention_heads=32,
        seq_length={seq_len}, vocab_size=50304, tensor_model_parallel_size={tp}, pipeline_model_parallel_size={pp},
        context_parallel_size={cp})
    cfg.train.micro_batch_size = {microbatch_size}
    cfg.train.global_batch_size = {global_batch_size}
"""
TORCHTITAN = """
[training]
seq_len = {seq_len}
local_batch_size = {microbatch_size}
global_batch_size = {global_batch_size}
[parallelism]
tensor_parallel_degree = {tp}
context_parallel_degree = {cp}
[activation_checkpoint]
mode = "none"
"""
DEEPSPEED = """{{"train_batch_size": {global_batch_size}, "train_micro_batch_size_per_gpu": {microbatch_size},
  "zero_optimization": {{"stage": {zero_stage}}}, "{dtype}": {{"enabled": true}},
  "tensor_parallel": {{"autotp_size": {tp}}}}}"""
ACCELERATE = """distributed_type: FSDP
num_processes: 16
mixed_precision: {dtype}
parallelism_config: {{parallelism_config_tp_size: {tp}, parallelism_config_cp_size: {cp}}}
"""
HUGGING_FACE = (
    "deepspeed --num_gpus 16 train.py --deepspeed ds.json --max_length {seq_len} --{dtype} True "
    "--per_device_train_batch_size {microbatch_size}\n"
)
MAXTEXT = """ici_tensor_parallelism: {tp}
per_device_batch_size: 4
max_target_length: {seq_len}
"""
FILES = {
    "megatron": ("run.sh", MEGATRON),
    "nemo": ("gpt.yaml", NEMO),
    "megatron-bridge": ("recipe.py", BRIDGE),
    "torchtitan": ("run.toml", TORCHTITAN),
    "deepspeed": ("ds.json", DEEPSPEED),
    "accelerate": ("acc.yaml", ACCELERATE),
    "hugging face": ("train.sh", HUGGING_FACE),
    "maxtext": ("base.yml", MAXTEXT),
}
SIZES_OF_MODEL = ("megatron", "nemo", "megatron-bridge")
VALUES: dict[str, Any] = {
    "seq_len": 4096, "microbatch_size": 1, "global_batch_size": 64, "tp": 1, "pp": 1, "cp": 1, "dtype": "bf16",
    "optimizer": "adam", "zero_stage": 1,
}  # fmt: skip
WORDS = {("nemo", "fp16"): {"dtype": "16"}}
OTHERS: dict[str, Any] = {
    "seq_len": 2048, "microbatch_size": 2, "global_batch_size": 128, "tp": 4, "pp": 2, "cp": 2, "dtype": "fp16",
    "optimizer": "sgd", "zero_stage": 3,
}  # fmt: skip


def priced(folder: Path, trainer: str, values: dict[str, Any], **options: Any) -> LaunchAnswer:
    """The launch of a trainer with these values in its file, priced with options beside it."""
    name, text = FILES[trainer]
    folder.mkdir(exist_ok=True)
    if trainer == "hugging face":
        (folder / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}')
    (folder / name).write_text(text.format(**(values | WORDS.get((trainer, values["dtype"]), {}))))
    model = None if trainer in SIZES_OF_MODEL else MODEL
    return api.lint_launch(
        folder / name,
        "dgx-h100",
        model=model,
        num_devices=16,
        search=False,
        **({"seq_len": 4096} if "{seq_len}" not in text else {}),
        **options,
    )


@pytest.mark.parametrize("option", OTHERS)
@pytest.mark.parametrize("trainer", FILES)
def test_an_option_gives_the_price_of_the_file_with_that_value_in_it(trainer: str, option: str, tmp_path: Path) -> None:
    text = FILES[trainer][1]
    if f"{{{option}}}" not in text:
        pytest.skip(f"such a file of {trainer} does not say {option}")
    written = priced(tmp_path / "written", trainer, {**VALUES, option: OTHERS[option]})
    beside = priced(tmp_path / "beside", trainer, VALUES, **{option: OTHERS[option]})
    assert beside.priced.plan == written.priced.plan
    assert beside.job == written.job
    assert beside.priced.step_s == written.priced.step_s
    assert float(beside.priced.footprint.device_bytes) == float(written.priced.footprint.device_bytes)
    assert any(note.startswith(f"{option}=") and "as stated" in note for note in beside.assumptions)
    assert not any(" as stated; the file says" in note for note in written.assumptions)


@pytest.mark.parametrize("bad", ["60", "$GBS", "many"])
@pytest.mark.parametrize("trainer", ["megatron", "nemo", "torchtitan", "deepspeed"])
def test_a_value_that_an_option_replaces_may_be_wrong_or_unknown(trainer: str, bad: str, tmp_path: Path) -> None:
    wrong = {**VALUES, "global_batch_size": bad}
    quoted = f'"{bad}"' if trainer in ("torchtitan", "deepspeed") and not bad.isdigit() else bad
    with pytest.raises(InputError):
        priced(tmp_path, trainer, {**wrong, "global_batch_size": quoted, "microbatch_size": 8})
    answer = priced(tmp_path, trainer, {**wrong, "global_batch_size": quoted}, global_batch_size=64)
    assert answer.job.global_batch_size == 64
    assert f"global_batch_size=64 as stated; the file says {bad}" in answer.assumptions
    assert answer.priced.step_s == priced(tmp_path, trainer, VALUES).priced.step_s


def test_a_batch_of_maxtext_that_is_not_known_is_asked_for_as_the_global_one(tmp_path: Path) -> None:
    unknown = MAXTEXT.format(**VALUES).replace("per_device_batch_size: 4", "per_device_batch_size: ${X}")
    (tmp_path / "base.yml").write_text(unknown)
    with pytest.raises(InputError, match=r"^per_device_batch_size=.*or global_batch_size stated beside it"):
        beside(tmp_path / "base.yml", microbatch_size=2)
    answer = beside(tmp_path / "base.yml", global_batch_size=32)
    assert "global_batch_size=32 as stated; the file says per_device_batch_size=${X}" in answer.assumptions
    assert not any("ignored" in note for note in answer.assumptions)
    (tmp_path / "base.yml").write_text(MAXTEXT.format(**VALUES))
    assert answer.job == beside(tmp_path / "base.yml").job


@pytest.mark.parametrize("bad", ["$TP", "3", "four"])
@pytest.mark.parametrize("trainer", ["megatron", "nemo", "torchtitan", "accelerate", "maxtext"])
def test_a_stated_degree_replaces_one_that_the_devices_do_not_allow(trainer: str, bad: str, tmp_path: Path) -> None:
    quoted = f'"{bad}"' if trainer == "torchtitan" and not bad.isdigit() else bad
    answer = priced(tmp_path, trainer, {**VALUES, "tp": quoted}, tp=4)
    assert answer.priced.plan == priced(tmp_path, trainer, {**VALUES, "tp": 4}).priced.plan
    assert f"tp=4 as stated; the file says {bad}" in answer.assumptions


def test_a_word_that_an_option_replaces_may_be_wrong(tmp_path: Path) -> None:
    folder, bad = tmp_path, {**VALUES, "optimizer": "adm"}
    answer = priced(folder, "megatron", bad, optimizer="sgd")
    assert answer.job == priced(folder, "megatron", {**VALUES, "optimizer": "sgd"}).job
    assert "optimizer=sgd as stated; the file says adm" in answer.assumptions
    (folder / "run.sh").write_text(f"{MEGATRON.format(**VALUES).strip()} --recompute-granularity al\n")
    answer = api.lint_launch(folder / "run.sh", "dgx-h100", search=False, recompute="full")
    assert "recompute=full as stated; the file says al" in answer.assumptions


@pytest.mark.parametrize("layers", ["$L", "16x"])
def test_a_model_beside_a_file_replaces_sizes_that_are_wrong_or_unknown(layers: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(MEGATRON.format(**VALUES).replace("layers 16", f"layers {layers}"))
    with pytest.raises(InputError, match="--num-layers"):
        api.lint_launch(tmp_path / "run.sh", "dgx-h100", search=False)
    for answer in (
        api.lint_launch(tmp_path / "run.sh", "dgx-h100", model=MODEL, search=False),
        api.estimate(MODEL, cluster="dgx-h100", launch=tmp_path / "run.sh").question,
    ):
        assert any(f"not the file's sizes (--num-layers={layers})" in note for note in answer.assumptions)
    assert not api.lint_launch(tmp_path / "run.sh", "dgx-h100", model=MODEL, search=False).unpriced


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tp": 3}, "^tp=3: the launch has 16 devices"),
        ({"global_batch_size": 63}, "^global_batch_size=63: must be a multiple"),
        ({"cp": 5, "pp": 2}, "^pp=2: the launch has 16 devices, and tp x pp x cp is 10"),
    ],
)
@pytest.mark.parametrize("trainer", ["megatron", "torchtitan"])
def test_an_option_that_the_launch_does_not_allow_is_the_one_that_is_named(
    trainer: str, options: dict[str, int], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words if trainer == "megatron" else words.split(":")[0].split("=")[1]):
        priced(tmp_path, trainer, VALUES, **options)


@pytest.mark.parametrize("rate", ["0", "0.05"])
def test_a_rate_of_dropout_is_a_number(rate: str, tmp_path: Path) -> None:
    text = MEGATRON.format(**VALUES)
    (tmp_path / "run.sh").write_text(text.replace("hidden-dropout 0", f"hidden-dropout {rate}"))
    assert api.lint_launch(tmp_path / "run.sh", "dgx-h100", search=False).job.dropout is (rate != "0")


# -- what a file leaves to the program that it starts ---------------------------------------------------------------

AUTO = """{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "train_batch_size": "auto",
  "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "overlap_comm": true}}"""


def beside(path: Path, **options: Any) -> LaunchAnswer:
    return api.lint_launch(path, "dgx-h100", model=MODEL, num_devices=8, search=False, **options)


def test_what_a_deepspeed_file_leaves_to_the_program_is_asked_for_at_once(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(AUTO)
    with pytest.raises(InputError) as caught:
        beside(tmp_path / "ds.json")
    assert str(caught.value).startswith('bf16.enabled: is left to the program ("auto"), as is train_micro_batch_size')
    assert "nearest: dtype and microbatch_size and seq_len stated beside the file" in str(caught.value)
    with pytest.raises(InputError, match=r"^train_micro_batch_size_per_gpu: is left to the program"):
        beside(tmp_path / "ds.json", dtype="bf16", seq_len=4096)


def test_what_is_stated_beside_a_deepspeed_file_fills_in_what_it_leaves_to_the_program(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(AUTO)
    answer = beside(tmp_path / "ds.json", dtype="bf16", seq_len=4096, microbatch_size=2)
    assert (answer.job.recipe.value, answer.job.global_batch_size, answer.priced.plan.microbatch_size) == (
        "bf16",
        16,
        2,
    )
    assert any(
        note.startswith("global_batch_size=16: gradient_accumulation_steps is left") for note in answer.assumptions
    )
    assert not any("the file says" in note for note in answer.assumptions)
    answer = beside(tmp_path / "ds.json", dtype="bf16", seq_len=4096, microbatch_size=2, global_batch_size=64)
    assert answer.priced.plan.num_microbatches == 4
    assert not any("global_batch_size" in note for note in answer.assumptions)
    full = AUTO.replace('"train_batch_size": "auto"', '"train_batch_size": 64').replace(
        'enabled": "auto"', 'enabled": true'
    )
    (tmp_path / "ds.json").write_text(full.replace('gpu": "auto"', 'gpu": 2'))
    assert beside(tmp_path / "ds.json", seq_len=4096).job == answer.job


def test_a_file_without_a_precision_is_not_taken_as_fp32(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text("distributed_type: FSDP\nnum_processes: 8\n")
    with pytest.raises(InputError, match=r"^mixed_precision: is left to the program; .*nearest: dtype and seq_len"):
        beside(tmp_path / "acc.yaml")
    assert beside(tmp_path / "acc.yaml", seq_len=4096, dtype="bf16").job.recipe.value == "bf16"
    (tmp_path / "acc.yaml").write_text("distributed_type: FSDP\nnum_processes: 8\nmixed_precision: 'no'\n")
    assert any("trained in fp32" in note for note in beside(tmp_path / "acc.yaml", seq_len=4096).assumptions)
    (tmp_path / "ds.json").write_text('{"train_batch_size": 64}')
    assert any("trained in fp32" in note for note in beside(tmp_path / "ds.json", seq_len=4096).assumptions)


def test_a_batch_that_an_accelerate_file_does_not_have_is_assumed(tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(ACCELERATE.format(**VALUES))
    answer = priced(tmp_path, "accelerate", VALUES)
    for words in ("microbatch_size=1 is assumed", "global_batch_size=16 is assumed"):
        assert any(note.startswith(words) for note in answer.assumptions)
    stated = priced(tmp_path, "accelerate", VALUES, global_batch_size=64, microbatch_size=2)
    assert not any("batch" in note for note in stated.assumptions)
    question = api.ask(MODEL, cluster="dgx-h100", launch=tmp_path / "acc.yaml", seq_len=4096)
    assert question.run.origin("microbatch_size") is question.run.origin("global_batch_size") is Origin.USUAL


@pytest.mark.parametrize("table", ["", '[activation_checkpoint]\nmode = "selective"\n'])
def test_torchtitans_usual_checkpointing_is_an_assumption(table: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(f"[training]\nseq_len = 4096\n{table}")
    notes = beside(tmp_path / "run.toml").assumptions
    assert any("selective_ac_option=2 (torchtitan's default)" in note for note in notes)
    assert any("mode=selective" in note for note in notes) is (not table)
    assert not any(
        "selective_ac_option" in note for note in beside(tmp_path / "run.toml", recompute="full").assumptions
    )


@pytest.mark.parametrize(("name", "vocabulary"), [("meta-llama/Llama-3.2-1B", 128256), ("/models/Qwen3-8B", 151936)])
def test_a_tokenizer_named_after_a_known_model_says_the_vocabulary(name: str, vocabulary: int, tmp_path: Path) -> None:
    text = MEGATRON.format(**VALUES)
    (tmp_path / "run.sh").write_text(text.replace("--vocab-size 50304", f"--tokenizer-model {name}"))
    answer = api.lint_launch(tmp_path / "run.sh", "dgx-h100", search=False)
    (tmp_path / "run.sh").write_text(text.replace("50304", str(vocabulary)))
    assert answer.priced.step_s == api.lint_launch(tmp_path / "run.sh", "dgx-h100", search=False).priced.step_s
    assert any("whose tokenizer is named" in note for note in answer.assumptions)


@pytest.mark.parametrize("name", ["org/tokens-of-ours", "$TOKENIZER"])
def test_the_vocabulary_of_an_unknown_tokenizer_is_open(name: str, tmp_path: Path) -> None:
    text = MEGATRON.format(**VALUES)
    (tmp_path / "run.sh").write_text(text.replace("--vocab-size 50304", f"--tokenizer-model {name}"))
    answer = api.lint_launch(tmp_path / "run.sh", "dgx-h100", search=False)
    (tmp_path / "run.sh").write_text(text.replace("50304", "128256"))
    larger = api.lint_launch(tmp_path / "run.sh", "dgx-h100", search=False).priced
    assert answer.priced.low_s < answer.priced.step_s < larger.step_s < answer.priced.high_s
    turn = next(turn for turn in answer.depends_on if turn.field == "vocab_size" and turn.value == "128256")
    assert turn.figures["time_s"] == pytest.approx(larger.step_s, rel=1e-6)
    assert any(f"the tokenizer {name} says it, and is not known" in note for note in answer.assumptions)


LOCAL_BATCH = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 4
seq_len = 4096
[parallelism]
data_parallel_shard_degree = 8
"""


def test_a_stated_axis_that_moves_the_batch_says_so(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(LOCAL_BATCH)
    words = "global_batch_size={}: the file states none, microbatch_size x dp (32 before)"
    moved = api.lint_launch(file, "dgx-h100", search=False, microbatch_size=1)
    assert moved.job.global_batch_size == 8
    assert words.format(8) in moved.assumptions
    split = api.lint_launch(file, "dgx-h100", search=False, tp=2)
    assert split.job.global_batch_size == 16
    assert words.format(16) in split.assumptions
    kept = api.lint_launch(file, "dgx-h100", search=False, microbatch_size=1, global_batch_size=32)
    assert not any("the file states none" in note for note in kept.assumptions)


def test_a_change_of_a_launch_whose_batch_follows_keeps_the_batch(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        LOCAL_BATCH.replace("= 4", "= 8", 1).replace("shard_degree = 8", "shard_degree = 1\ntensor_parallel_degree = 8")
    )
    answer = api.lint_launch(file, "dgx-h100")
    fixes = [finding.fix for finding in answer.findings if "dp" in finding.fix]
    assert fixes
    assert all(fix["global_batch_size"] == 8 for fix in fixes)
    stated = api.lint_launch(file, "dgx-h100", global_batch_size=8)
    assert not any("global_batch_size" in finding.fix for finding in stated.findings)
