"""Forms of launch scripts that were read as something else, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from sartor import api
from sartor.errors import InputError
from sartor.launch.files import read_launch
from sartor.model.training import Recipe, Recompute
from sartor.model.zoo import load_model

MODEL = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu "
    "--disable-bias-linear --vocab-size 128256 --position-embedding-type rope --max-position-embeddings 8192 "
    "--seq-length 8192"
)
TRAIN = "--micro-batch-size 1 --global-batch-size 128 --bf16"


def put(folder: Path, text: str, name: str = "run.sh") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_arguments_read_from_a_here_document_are_the_models(tmp_path: Path) -> None:
    start = f"torchrun --nproc_per_node 8 pretrain_gpt.py $MODEL_ARGS {TRAIN}\n"
    script = f"read -r -d '' MODEL_ARGS <<'EOT'\n{MODEL}\nEOT\n{start}"
    reading = read_launch(put(tmp_path, script))
    assert reading.shape
    assert int(reading.shape.num_layers) == 32
    assert (*reading.unknown, *reading.unpriced) == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "torchrun --nproc_per_node 8 train.py --lr 1 --a 1 --b 2 --c 3 --d 4 --per_device_train_batch_size 1",
            "of no t",
        ),
        ("torchrun --nproc_per_node 8 train.py --warmup 1 --step_num 9 --a 1 --b 2 --c 3", "of no trainer"),
        ("torchrun --nproc_per_node 8 own/train.py --micro-batch-size 1 --model-name x", "is not Megatron-LM's"),
        (
            "accelerate launch --num_processes 2 -m axolotl.cli.train away.yml",
            "away.yml: has the keys of axolotl's run",
        ),
        ("llamafactory-cli train $FOLDER/away.yaml", "has the keys of LLaMA-Factory's run"),
        ("python -m openrlhf.cli.train_pairs --pretrain x --zero_stage 2 --micro_train_batch_size 1", "a copy of it"),
        (
            f"torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} {TRAIN} --uneven-pipeline-stages 26 22",
            "--uneven-pipeline-stages='26 22'",
        ),
    ],
)
def test_a_run_of_which_too_little_is_known_is_refused(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=why):
        api.lint_launch(put(tmp_path, text + "\n"), "dgx-h100", model="llama-2-7b", seq_len=512, search=False)


def test_an_encoder_is_not_trained_as_a_decoder(tmp_path: Path) -> None:
    script = put(tmp_path, "torchrun --nproc_per_node 2 sft.py --per_device_train_batch_size 2 --bf16\n")
    with pytest.raises(InputError, match="must be a decoder"):
        read_launch(script, shape=load_model("bert-large"))


def test_further_training_commands_of_a_script_are_said(tmp_path: Path) -> None:
    start = f"torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} {TRAIN}"
    reading = read_launch(put(tmp_path, f"{start}\n{start} --tensor-model-parallel-size 2\n"))
    assert int(reading.plan.dims.tp) == 2
    assert any("starts 1 more training command" in note for note in reading.assumptions)


def test_frozen_weights_that_are_loaded_in_32_bits_leave_their_bytes_open(tmp_path: Path) -> None:
    words = "--model_name_or_path Qwen/Qwen2.5-7B --use_peft --lora_r 8 --per_device_train_batch_size 1 --bf16"
    for word, shown in (("", True), ("--torch_dtype bfloat16", False), ("--load_in_4bit", False)):
        reading = read_launch(put(tmp_path, f"trl sft {words} --max_length 512 {word}\n"), num_devices=1)
        assert any(name.startswith("torch_dtype=float32") for name in reading.unpriced) is shown


def test_the_first_round_of_a_sweep_is_taken_and_said(tmp_path: Path) -> None:
    script = (
        f"for TP in 2 4; do\n  torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} {TRAIN} \\\n"
        "    --tensor-model-parallel-size $TP 2>&1 | tee log_$TP.txt\ndone\n"
    )
    reading = read_launch(put(tmp_path, script))
    assert int(reading.plan.dims.tp) == 2
    assert any("the first of 2 rounds of a loop, TP=2" in note for note in reading.assumptions)


def test_what_a_loop_goes_over_stays_unknown_where_only_the_shell_knows_it(tmp_path: Path) -> None:
    script = f"for TP in $(seq 4); do\n  torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} {TRAIN}\ndone\n"
    with pytest.raises(InputError, match="must hold a training command"):
        read_launch(put(tmp_path, script))


@pytest.mark.parametrize(("flag", "recipe"), [("--bf16 True", Recipe.BF16), ("--fp16", Recipe.FP16), ("", Recipe.FP32)])
def test_an_auto_precision_of_deepspeed_is_what_the_programs_flag_says(
    flag: str, recipe: Recipe, tmp_path: Path
) -> None:
    put(
        tmp_path,
        '{"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}',
        "ds.json",
    )
    words = f"--deepspeed ds.json --per_device_train_batch_size 2 --gradient_accumulation_steps 8 {flag}"
    reading = read_launch(put(tmp_path, f"torchrun --nnodes 4 --nproc_per_node 8 run_clm.py {words}\n"))
    assert reading.parts.recipe is recipe


def test_an_evaluation_by_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a pretraining step"):
        read_launch(put(tmp_path, f"torchrun --nproc_per_node 8 tasks/main.py --task LAMBADA {MODEL} {TRAIN}\n"))


NEMO = """
name: megatron_gpt
trainer: {devices: 8, num_nodes: 4, precision: bf16-mixed}
model:
  micro_batch_size: 1
  global_batch_size: 128
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: 4
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: 11008
  num_attention_heads: 32
  kv_channels: null
  normalization: rmsnorm
  layernorm_epsilon: 1e-5
  activation: fast-swiglu
  bias: false
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  sequence_parallel: true
  activations_checkpoint_granularity: full
  activations_checkpoint_method: block
  activations_checkpoint_num_layers: 1
  optim: {name: distributed_fused_adam, lr: 2e-4}
"""


def test_a_nemo_configuration_is_read_with_nemos_own_habits(tmp_path: Path) -> None:
    reading = read_launch(put(tmp_path, NEMO, "gpt.yaml"))
    plan, job = reading.plan, reading.job()
    assert (int(plan.dims.tp), int(plan.dims.pp), int(plan.dims.dp), plan.virtual_stages) == (2, 2, 8, 4)
    assert (plan.zero_stage, plan.recompute, plan.recompute_layers) == (1, Recompute.FULL, 4)
    assert (job.trainer.name, job.seq_len, job.recipe) == ("nemo", 4096, Recipe.BF16)
    assert (job.shape.dense_ffn and job.shape.dense_ffn.gated, job.shape.tied_embeddings) == (True, False)
    assert (*reading.unknown, *reading.unpriced) == ()


def test_a_nemo_configuration_without_devices_or_with_another_activation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="num_devices"):
        read_launch(put(tmp_path, NEMO.replace("devices: 8", "devices: auto"), "gpt.yaml"))
    with pytest.raises(InputError, match="activation=reglu: must be one of gelu, swiglu"):
        read_launch(put(tmp_path, NEMO.replace("fast-swiglu", "reglu"), "gpt.yaml"))


def test_a_recipe_of_nemo_that_names_its_model_alone_is_refused_with_the_reason(tmp_path: Path) -> None:
    text = "from nemo.collections import llm\nrecipe = llm.llama3_8b.pretrain_recipe(name='x', num_nodes=2)\n"
    with pytest.raises(InputError, match="set by NeMo 2's recipe of this name, whose values sartor does not have"):
        read_launch(put(tmp_path, text, "recipe.py"))


def test_a_script_in_quotes_is_no_further_training_command(tmp_path: Path) -> None:
    command = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16"
    inner = f"{command} --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 256"
    path = tmp_path / "launch.sh"
    path.write_text(f'docker run --rm --gpus all image:1 bash -lc "{inner}"\n')
    assert not [note for note in read_launch(path).assumptions if "training command" in note]
