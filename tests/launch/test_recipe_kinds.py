"""A recipe with keys that are not understood is not priced as if they were not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sartor.errors import InputError
from sartor.launch.files import read_launch
from sartor.launch.plan import LaunchReading
from sartor.model.training import Recompute
from sartor.operators import DType

CORPUS = Path(__file__).parents[1] / "corpus"
RECIPES = {
    "axolotl": "three_of_four.yaml",
    "llamafactory": "then_predictions.yaml",
    "nanotron": "narrow_sums.yaml",
    "torchtune": "full_8b.yaml",
    "swift": "commented.sh",
    "automodel": "kept_weights.yaml",
    "verl": "brackets.sh",
}
ARGUMENTS = ("swift", "verl")
"""Recipes of which keys are arguments."""


def changed(dialect: str, folder: Path, lines: str = "", before: str = "", after: str = "") -> Path:
    """A recipe of the corpus with other text in it, or with more keys behind it."""
    text = (CORPUS / dialect / RECIPES[dialect]).read_text().replace(before or "\0", after)
    file = folder / RECIPES[dialect]
    file.write_text(f"{text.rstrip()} {lines}\n" if dialect in ARGUMENTS else f"{text}\n{lines}\n")
    return file


def read(file: Path) -> LaunchReading:
    return read_launch(file, num_devices=8)


@pytest.mark.parametrize(
    ("dialect", "lines", "why"),
    [
        ("axolotl", "gkd_trainer: true\ngkd_teacher: Qwen/Qwen3-32B", "a second model"),
        ("axolotl", "model_type: AutoModelForSequenceClassification\nnum_labels: 3", "classification"),
        (
            "axolotl",
            "halting: learned\nloops: 6\nthoughts: 12\nscratchpad: wide\ngate: soft\nwheel: 2",
            "of no trainer",
        ),
        ("llamafactory", "fine_tuning: full", "PaddleFormers"),
        ("nanotron", "doremi:\n  domain_names: web, code", "a second model"),
        ("swift", "--task_type generative_reranker", "ranking"),
        ("verl", "+distillation.teacher_model.path=Qwen/Qwen3-32B", "a second model"),
    ],
)
def test_a_recipe_of_another_kind_of_run_is_refused(dialect: str, lines: str, why: str, tmp_path: Path) -> None:
    read(changed(dialect, tmp_path))
    with pytest.raises(InputError, match=why):
        read(changed(dialect, tmp_path, lines))


def test_predictions_after_training_are_no_other_run_and_alone_they_are(tmp_path: Path) -> None:
    read(changed("llamafactory", tmp_path))
    read(changed("llamafactory", tmp_path, "do_distill: false", before="do_predict: true", after="do_predict: false"))
    with pytest.raises(InputError, match=r"^do_predict.*serving a model is not training"):
        read(changed("llamafactory", tmp_path, before="do_train: true\n"))


@pytest.mark.parametrize(
    ("dialect", "lines", "name"),
    [
        ("nanotron", "compressive_memory:\n  block_length: 512\n  gate: sigmoid", "compressive_memory.block_length"),
        ("axolotl", "looped_depth: 6\nlooped_halting: learned\nlooped_start: 8", "looped_depth"),
        ("torchtune", "ac_mode: selective\nac_option: 2", "ac_mode"),
        ("automodel", "twin:\n  path: own/model\n  weight: 0.5", "twin.path"),
    ],
)
def test_an_unknown_part_of_a_recipe_leaves_it_open(dialect: str, lines: str, name: str, tmp_path: Path) -> None:
    reading = read(changed(dialect, tmp_path, lines))
    assert name in reading.open_fields
    assert name in reading.unknown


def test_a_single_unknown_key_is_named_and_usual_ones_are_not(tmp_path: Path) -> None:
    reading = read(changed("axolotl", tmp_path, "halting_rule: learned\nwandb_project: own\nnarrowed: false"))
    assert reading.unknown[-1:] == ("halting_rule",)
    assert not reading.open_fields
    assert "wandb_project" in reading.ignored


def test_adapters_on_three_of_four_modules_of_attention_say_as_which_they_are_priced(tmp_path: Path) -> None:
    note = "adapters on q_proj, k_proj, v_proj are priced as on q_proj, k_proj, v_proj, o_proj"
    assert note in read(changed("axolotl", tmp_path)).assumptions


def test_false_of_a_switch_that_is_on_by_itself_is_read(tmp_path: Path) -> None:
    assert read(changed("automodel", tmp_path)).plan.zero_stage == 2
    assert read(changed("automodel", tmp_path, before="reshard_after_forward: false", after="")).plan.zero_stage == 3
    narrow = read(changed("nanotron", tmp_path)).parts.trainer
    assert (narrow.grad_dtype, narrow.main_dtype) == (DType.BF16, DType.BF16)


def test_what_a_comment_ends_with_is_no_part_of_the_command(tmp_path: Path) -> None:
    file = tmp_path / "a.sh"
    said = "NPROC_PER_NODE=2 swift sft --model Qwen/Qwen3-8B --train_type full --per_device_train_batch_size $[1 + 1]"
    file.write_text(f"# as it was: \\\n{said} --gradient_accumulation_steps 4 --max_length 2048\n")
    plan = read_launch(file).plan
    assert (plan.num_devices, plan.microbatch_size) == (2, 2)


def test_a_size_of_a_recipes_model_that_is_not_read_is_open(tmp_path: Path) -> None:
    llama = "is_llama_config: true"
    file = changed("nanotron", tmp_path, before=llama, after=f"{llama}\n    moe_num_experts: 8")
    assert read(file).open_fields == {"moe_num_experts": "8"}


def test_none_is_a_word_of_its_own_on_a_command_line(tmp_path: Path) -> None:
    file = tmp_path / "a.sh"
    said = "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-7B --micro_batch_size 2 --global_batch_size 64"
    for word, how in ((" --recompute_granularity none", Recompute.NONE), ("", Recompute.SELECTIVE)):
        file.write_text(f"{said} --max_length 4096{word}\n")
        assert read(file).plan.recompute is how


@pytest.mark.parametrize(
    ("dialect", "before", "after", "key"),
    [
        ("automodel", "optimizer:\n", "optimizer:\n  offload_states: true\n", "optimizer.offload_states"),
        ("nanotron", "optimizer:\n", "optimizer:\n  quantized_states: 8\n", "optimizer.quantized_states"),
        ("verl", "data.train_files", "trainer.offload_actor=true data.train_files", "trainer.offload_actor"),
    ],
)
def test_a_key_that_bears_on_the_price_is_seen_in_a_section_that_does_not(
    tmp_path: Path, dialect: str, before: str, after: str, key: str
) -> None:
    assert any(key in each for each in read(changed(dialect, tmp_path, "", before, after)).unknown)


def test_a_size_that_is_not_read_in_the_config_beside_a_script_is_open(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text(
        "accelerate launch --num_processes 8 train.py --per_device_train_batch_size 1 --max_seq_length 4096\n"
    )
    sizes = {"hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32, "vocab_size": 32000}
    config = json.dumps({"model_type": "llama", "num_memory_experts": 64, **sizes})
    (tmp_path / "config.json").write_text(config)
    assert read(tmp_path / "train.sh").open_fields["num_memory_experts"] == "64"
