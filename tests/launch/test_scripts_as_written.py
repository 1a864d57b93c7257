"""Scripts as people write them, all own texts: unquoted arrays, functions, case, here-documents, sourced files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sartor.errors import InputError
from sartor.launch.files import read_launch
from sartor.launch.plan import LaunchReading
from sartor.launch.shell import MAX_STATEMENTS, read_shell
from sartor.model.training import Recipe

SIZES = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096"
BATCH = "--micro-batch-size 1 --global-batch-size 64"
RUN = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {BATCH} "


def read(folder: Path, text: str, num_devices: int = 0, **others: str) -> LaunchReading:
    for name, other in others.items():
        (folder / f"{name}.sh").write_text(other)
    (folder / "run.sh").write_text(text)
    return read_launch(folder / "run.sh", num_devices=num_devices)


def test_items_of_an_unquoted_array_fall_apart_at_their_blanks(tmp_path: Path) -> None:
    text = f"""
DTYPE=fp8
KIND=()
if [[ "$DTYPE" == "fp8" ]]; then
    KIND+=(
        "--fp8-format hybrid"
        "--fp8-recipe tensorwise"
    )
fi
DATA=("--tokenizer-type NullTokenizer" "--vocab-size 128256" "--mock-data")
{RUN} --bf16 ${{KIND[@]}} ${{DATA[@]}}
"""
    reading = read(tmp_path, text)
    assert reading.parts.recipe is Recipe.FP8_CURRENT
    assert reading.shape is not None
    assert int(reading.shape.vocab_size) == 128256
    assert (*reading.unknown, *reading.unpriced) == ()


def test_items_of_a_quoted_array_stay_whole() -> None:
    shell = read_shell("A=('--a 1' --b)\nrun \"${A[@]}\" ${A[@]}\n")
    assert shell.commands == [["run", "--a 1", "--b", "--a", "1", "--b"]]


def test_a_function_is_followed_with_its_arguments(tmp_path: Path) -> None:
    text = f"""
size_of() {{
    local tp=$1
    PARALLEL="--tensor-model-parallel-size $tp --pipeline-model-parallel-size ${{2:-1}}"
}}
function start {{
    {RUN} --bf16 $PARALLEL "$@"
}}
size_of 4 2
start --sequence-parallel
"""
    dims = read(tmp_path, text).plan.dims
    assert (dims.tp, dims.pp, dims.sequence_parallel) == (4, 2, True)


@pytest.mark.parametrize(("size", "layers"), [("7b", 32), ("70b", 80), ("13B", 40), ("huge", 12)])
def test_a_case_takes_its_branch(size: str, layers: int, tmp_path: Path) -> None:
    text = f"""
MODEL={size}
case $MODEL in
    7b|8b) LAYERS=32 ;;
    13[bB])
        LAYERS=40
        ;;
    70b)
        LAYERS=80
        if [ 1 -eq 1 ]; then EXTRA=--bf16; fi
        ;;
    *) LAYERS=12;;
esac
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers $LAYERS --hidden-size 1024 --num-attention-heads 16 {BATCH}
"""
    reading = read(tmp_path, text)
    assert reading.shape is not None
    assert int(reading.shape.num_layers) == layers


def test_a_case_of_what_nobody_knows_is_said(tmp_path: Path) -> None:
    reading = read(tmp_path, f"case $(hostname) in\n a*) X=--fp16;;\nesac\n{RUN} --bf16 $X\n")
    assert reading.parts.recipe is Recipe.BF16
    assert "only the running shell knows" in " ".join(reading.assumptions)


def test_a_here_document_is_text_but_where_a_shell_reads_it(tmp_path: Path) -> None:
    text = f"""
cat <<EOF
torchrun --nproc_per_node 2 pretrain_gpt.py {SIZES} --a --b --c --d --e --f --g --h --i
EOF
TP=2
srun bash <<"END"
{RUN} --bf16 --tensor-model-parallel-size $TP
END
"""
    reading = read(tmp_path, text)
    assert (reading.num_devices, reading.plan.dims.tp) == (8, 2)


def test_a_script_that_is_written_and_then_started_is_read(tmp_path: Path) -> None:
    text = f"cat > /tmp/job.sh <<-EOF\n\t{RUN} --fp16\n\tEOF\nsbatch /tmp/job.sh\n"
    assert read(tmp_path, text).parts.recipe is Recipe.FP16


def test_a_file_beside_the_script_is_sourced_and_no_other(tmp_path: Path) -> None:
    text = f'source "$(dirname $0)/common.sh"\n. ../../elsewhere/secrets.sh\n{RUN} --bf16 $PARALLEL\n'
    reading = read(tmp_path, text, common="PARALLEL='--tensor-model-parallel-size 4'\n")
    assert reading.plan.dims.tp == 4
    assert "secrets.sh is not in the script's folder" in " ".join(reading.assumptions)


def test_a_file_that_sources_itself_ends(tmp_path: Path) -> None:
    text = f"source a.sh\n{RUN} --bf16 $X\n"
    assert read(tmp_path, text, a="source b.sh\nX=--sequence-parallel\n", b="source a.sh\n").num_devices == 8


def test_a_quote_that_ends_in_a_backslash_is_never_closed() -> None:
    with pytest.raises(InputError, match="never closed"):
        read_shell('run "a\\')


def test_a_function_that_calls_itself_ends() -> None:
    assert read_shell("f() {\n f\n f\n}\nf\n").followed < MAX_STATEMENTS


def test_a_guarded_assignment_follows_its_test(tmp_path: Path) -> None:
    text = f"""
FP16=no
[ "$FP16" = yes ] && PRECISION=--fp16
[[ $FP16 == yes ]] || PRECISION=--bf16
if [[ -n $FP16 && $FP16 != no ]]; then PRECISION=--never; fi
{RUN} $PRECISION ${{FP16:+--sequence-parallel}}
"""
    reading = read(tmp_path, text)
    assert reading.parts.recipe is Recipe.BF16
    assert (*reading.unknown, *reading.unpriced) == ()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("pretrain_t5.py --num-layers 12", "encoder-decoder"),
        ("pretrain_bert.py --num-layers 12", "an encoder"),
        ("pretrain_vlm.py --num-layers 12", "image or video input"),
        ("pretrain_vision_classify.py --num-layers 12", "image or video input"),
        ("pretrain_mamba.py --num-layers 12", "state-space layers"),
        ("pretrain_retro.py --num-layers 12", "RETRO"),
        ("tools/run_text_generation_server.py --num-layers 12", "serving a model"),
        ("examples/inference/gpt/gpt_dynamic_inference.py --num-layers 12", "serving a model"),
        ("tasks/main.py --num-layers 12 --skip-train", "not a pretraining step"),
        ("tools/checkpoint/convert.py --num-layers 12", "it trains nothing"),
        ("train_rl.py --num-layers 12", "reinforcement learning"),
        ("pretrain_gpt.py --num-layers 12 --decoder-seq-length 128", "encoder-decoder"),
        ("pretrain_i2v.py --micro-batch-size 1", "image or video"),
        ("run_ner.py --model_name_or_path x --per_device_train_batch_size 4", "fine-tuning on a task"),
        ("cpo.py --per_device_train_batch_size 4", "pairs or rewards"),
        ("train.py --per_device_train_batch_size 4 --vision_tower clip", "image or video"),
        ("train.py --per_device_train_batch_size 4 --simpo_gamma 1", "pairs or rewards"),
        ("-m openrlhf.cli.train_remax --pretrain x --zero_stage 2", "reinforcement learning"),
    ],
)
def test_what_pretrains_no_decoder_is_refused_with_the_reason(command: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must pretrain a decoder") as caught:
        read(tmp_path, f"torchrun --nproc_per_node 8 {command} --hidden-size 768 --num-attention-heads 12\n")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", f"python pretrain_gpt.py {SIZES} {BATCH} --tensor-model-parallel-size 4\n"),
        ("train.toml", '[model]\nname = "llama3"\nflavor = "8B"\n[parallelism]\ntensor_parallel_degree = 4\n'),
        ("ds.json", '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}'),
        ("a.yaml", "distributed_type: FSDP\nmixed_precision: bf16\n"),
    ],
)
def test_a_number_of_devices_that_nobody_says_is_asked_for(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="missing argument num_devices: must be given"):
        read_launch(tmp_path / name)
    assert read_launch(tmp_path / name, num_devices=8).num_devices == 8


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("--fp16", "--bf16"),
        ("--fp8-format hybrid", "--fp4-format e2m1"),
        ("--swiglu", "--squared-relu"),
        ("--use-torch-fsdp2", "--use-distributed-optimizer"),
        ("--num-layers-per-virtual-pipeline-stage 2", "--num-virtual-stages-per-pipeline-rank 2"),
    ],
)
def test_two_arguments_that_exclude_each_other_are_refused(one: str, other: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="takes one of the two") as caught:
        read(tmp_path, f"{RUN} {other} {one}\n")
    assert one.split()[0] in str(caught.value)
    assert other.split()[0] in str(caught.value)


def test_embedding_and_loss_count_as_layers_of_the_chunks_they_are_split_with(tmp_path: Path) -> None:
    ends = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    chunks = "--num-layers 30 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2"
    plan = read(tmp_path, f"{RUN} {chunks} {ends}\n").plan
    assert int(plan.virtual_stages) == 4
    assert plan.stage_layers == (1, *[2] * 14, 1)
