"""Forms of launch scripts that were read as something else, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from sartor.errors import InputError
from sartor.launch.files import read_launch
from sartor.model.training import Recipe

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
    assert reading.unknown == ()


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
    with pytest.raises(InputError, match="an evaluation or a task"):
        read_launch(put(tmp_path, f"torchrun --nproc_per_node 8 tasks/main.py --task LAMBADA {MODEL} {TRAIN}\n"))
