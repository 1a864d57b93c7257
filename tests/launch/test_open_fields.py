"""What a launch does not say, or nobody understands, is no default: it is named, and nothing is priced on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sartor import api
from sartor.errors import InputError
from sartor.launch.files import read_launch
from sartor.launch.shell_words import HOLE
from sartor.launch.stated import unset_arguments
from sartor.model.training import packed_document
from sartor.report.diagnose_words import _lines
from sartor.report.plan_words import turn_lines

SIZES = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --swiglu "
    "--disable-bias-linear --normalization RMSNorm --position-embedding-type rope --vocab-size 128256 --bf16 "
    "--max-position-embeddings 4096"
)
REST = "--seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --use-distributed-optimizer"


def script(
    folder: Path, words: str, head: str = "", program: str = "torchrun --nproc-per-node 8 pretrain_gpt.py"
) -> Path:
    file = folder / "run.sh"
    file.write_text(f"#!/bin/bash\n{head}{program} {SIZES} {words}\n")
    return file


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (f"{REST} --tensor-model-parallel-size $TP", "--tensor-model-parallel-size"),
        (f"{REST} --pipeline-model-parallel-size ${{PP:?}}", "--pipeline-model-parallel-size"),
        (f"{REST} --recompute-granularity $GRANULARITY", "--recompute-granularity"),
        ("--seq-length 4096 --global-batch-size 64 --micro-batch-size $(cat mbs)", "--micro-batch-size"),
        (f"{REST} --optimizer $OPT", "--optimizer"),
    ],
)
def test_a_value_that_the_file_does_not_say_is_open_and_nothing_is_priced(
    words: str, name: str, tmp_path: Path
) -> None:
    file = script(tmp_path, words)
    assert set(read_launch(file).open_fields) == {name}
    with pytest.raises(InputError, match=rf"^{name}=.*the file does not say its value"):
        api.lint_launch(file, "dgx-h100", search=False)


def test_a_flag_misspelt_is_no_default(tmp_path: Path) -> None:
    file = script(tmp_path, f"{REST} --tensor-model-paralel-size 4")
    with pytest.raises(InputError, match=r"^--tensor-model-paralel-size=4: not a field.*--tensor-model-parallel-size$"):
        api.lint_launch(file, "dgx-h100", search=False)


def test_what_has_no_price_may_stay_open(tmp_path: Path) -> None:
    file = script(tmp_path, f"{REST} --lr $LR --rotary-base $BASE --norm-epsilon $EPS --save $DIR")
    assert not read_launch(file).open_fields
    assert api.lint_launch(file, "dgx-h100", search=False).fits is False


def test_sizes_and_length_may_be_said_beside_the_file(tmp_path: Path) -> None:
    text = script(tmp_path, REST).read_text().replace("--vocab-size 128256", "--vocab-size $V")
    (tmp_path / "run.sh").write_text(text.replace("--seq-length 4096", "--seq-length $SEQ"))
    with pytest.raises(InputError, match="--vocab-size"):
        api.lint_launch(tmp_path / "run.sh", "dgx-h100", search=False, seq_len=4096)
    answer = api.lint_launch(tmp_path / "run.sh", "dgx-h100", model="llama-3.1-8b", search=False, seq_len=4096)
    assert answer.job.seq_len == 4096


@pytest.mark.parametrize("variable", ["SLURM_GPUS_PER_NODE", "SLURM_NTASKS_PER_NODE"])
def test_what_slurm_sets_follows_from_the_scripts_own_header(variable: str, tmp_path: Path) -> None:
    head = "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=4\n#SBATCH --ntasks-per-node=4\n"
    words = f"{REST} --tensor-model-parallel-size ${variable} --pipeline-model-parallel-size 2"
    dims = read_launch(script(tmp_path, words, head, "srun python pretrain_gpt.py")).plan.dims
    assert (dims.tp, dims.pp, dims.dp) == (4, 2, 2)


def test_gradients_kept_in_16_bits_are_read(tmp_path: Path) -> None:
    words = f"{REST} --use-precision-aware-optimizer --main-grads-dtype bf16"
    wide, narrow = (api.lint_launch(script(tmp_path, w), "dgx-h100", search=False) for w in (REST, words))
    saved = wide.priced.footprint.grad_bytes - narrow.priced.footprint.grad_bytes
    assert saved == pytest.approx(wide.priced.footprint.grad_bytes / 2, rel=0.05)


@pytest.mark.parametrize(
    ("name", "text", "looks"),
    [
        ("pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata:\n  name: trainer\n", "a Kubernetes object"),
        ("c.yml", "services:\n  train: {image: x}\n", "Docker Compose"),
        ("n.yml", '{"pipe_parallel_size": 1, "num_layers": 8, "fp16": {"enabled": true}}', "GPT-NeoX"),
        ("r.yaml", "policy: {model_name: a/b}\ncluster: {gpus_per_node: 8}\n", "NeMo RL"),
        ("d.yaml", "hello: world\n", ""),
        ("config.json", json.dumps({"model_type": "llama", "hidden_size": 64}), "a model's config.json"),
        ("pyproject.toml", "[project]\nname = 'x'\n", "a Python project"),
    ],
)
def test_a_file_without_a_dialects_own_keys_is_refused_with_what_it_resembles(
    name: str, text: str, looks: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match="has no key of a launch") as caught:
        read_launch(tmp_path / name, num_devices=8)
    assert looks in str(caught.value)
    assert ("does not read" in str(caught.value)) is bool(looks)


@pytest.mark.parametrize(
    ("name", "text", "field"),
    [
        ("a.yaml", "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: ${PRECISION}\n", "mixed_precision"),
        ("b.yaml", "num_processes: 8\nmixed_precision: bf16\nfsdp_config: {fsdp_zero: 2}\n", "fsdp_config.fsdp_zero"),
        ("c.json", '{"train_batch_size": 64, "zero_optimization": {"stage": "{{ n }}"}}', "zero_optimization.stage"),
        ("d.toml", "[parallelism]\ntensor_parallel_degre = 4\n", "parallelism.tensor_parallel_degre"),
    ],
)  # fmt: skip
def test_a_placeholder_or_an_unknown_field_that_bears_on_the_price_is_open(
    name: str, text: str, field: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    assert set(read_launch(tmp_path / name, num_devices=8).open_fields) == {field}
    with pytest.raises(InputError, match=f"^{field}="):
        api.lint_launch(tmp_path / name, "dgx-h100", model="llama-3.1-8b", num_devices=8, seq_len=4096, search=False)


def test_an_option_wins_over_the_file_and_the_answer_names_both_values(tmp_path: Path) -> None:
    file = script(tmp_path, f"{REST} --tensor-model-parallel-size 2")
    answer = api.lint_launch(
        file, "dgx-h100", search=False, tp=4, sequence_parallel=True, microbatch_size=2, dtype="fp8", seq_len=2048
    )
    plan, job = answer.priced.plan, answer.job
    assert (plan.dims.tp, plan.dims.dp, plan.dims.sequence_parallel, plan.microbatch_size) == (4, 2, True, 2)
    assert (job.recipe.value, job.seq_len, job.global_batch_size, plan.num_microbatches) == (
        "fp8_delayed",
        2048,
        64,
        16,
    )
    assert set(answer.assumptions) >= {
        "tp=4 as stated; the file says 2",
        "sequence_parallel=true as stated; the file says false",
        "microbatch_size=2 as stated; the file says 1",
        "dtype=fp8_delayed as stated; the file says bf16",
        "seq_len=2048 as stated; the file says 4096",
    }


def test_an_option_that_says_the_same_changes_nothing_and_is_not_named(tmp_path: Path) -> None:
    file = script(tmp_path, f"{REST} --tensor-model-parallel-size 2")
    alone = api.lint_launch(file, "dgx-h100", search=False)
    same = api.lint_launch(
        file, "dgx-h100", search=False, tp=2, dp=4, dtype="bf16", global_batch_size=64, seq_len=4096, zero_stage=1
    )
    assert (same.priced.plan, same.job, same.assumptions) == (alone.priced.plan, alone.job, alone.assumptions)


def test_an_option_settles_what_the_file_leaves_open(tmp_path: Path) -> None:
    file = script(tmp_path, f"{REST} --tensor-model-parallel-size $TP --optimizer $OPT")
    with pytest.raises(InputError, match=r"--optimizer=\$OPT.*or optimizer stated beside it"):
        api.lint_launch(file, "dgx-h100", search=False, tp=4)
    answer = api.lint_launch(file, "dgx-h100", search=False, tp=4, optimizer="adam")
    written = api.lint_launch(
        script(tmp_path, f"{REST} --tensor-model-parallel-size 4 --optimizer adam"), "dgx-h100", search=False
    )
    assert answer.priced.step.step_s == written.priced.step.step_s
    assert "tp=4 as stated; the file says $TP" in answer.assumptions
    assert not any("ignored" in text for text in answer.assumptions)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tp": 3}, "tp=3: the launch has 8 devices, and tp x pp x cp is 3"),
        ({"tp": 4, "dp": 8}, "dp=8: the launch has 8 devices"),
        ({"global_batch_size": 63}, "global_batch_size=63: must be a multiple of dp x microbatch_size = 8 x 1"),
        ({"set": {"num_layers": 8}}, "set=.*MODEL"),
    ],
)
def test_what_the_launch_does_not_allow_is_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        api.lint_launch(script(tmp_path, REST), "dgx-h100", search=False, **options)


def test_a_batch_per_replica_stays_where_the_file_has_no_global_one(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[training]\nlocal_batch_size = 2\nseq_len = 4096\n")
    for tp, batch in ((1, 16), (4, 4)):
        answer = api.lint_launch(
            tmp_path / "run.toml", "dgx-h100", model="llama-3.2-1b", num_devices=8, search=False, tp=tp
        )
        assert (answer.job.global_batch_size, answer.priced.plan.num_microbatches) == (batch, 1)


@pytest.mark.parametrize("switch", ["", " --sequence-parallel"])
def test_a_stated_tp_keeps_the_files_sequence_parallelism(switch: str, tmp_path: Path) -> None:
    file = script(tmp_path, f"{REST} --tensor-model-parallel-size $TP{switch}")
    plan = api.lint_launch(file, "dgx-h100", search=False, tp=4).priced.plan
    assert plan.dims.sequence_parallel is bool(switch)


def test_a_program_s_arguments_say_how_it_tunes(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    words = "--per_device_train_batch_size 2 --bf16 True --max_seq_length 4096 --torch_dtype bfloat16"
    program = f"accelerate launch --num_processes 8 --multi_gpu sft.py {words}"
    tuned = "--use_peft --lora_r 32 --lora_target_modules all-linear --load_in_4bit --optim paged_adamw_8bit"
    script.write_text(f"{program} {tuned} --use_liger_kernel True\n")
    job = api.lint_launch(script, "dgx-h100", model="llama-3.2-1b", search=False).job
    assert (job.lora_rank, job.lora_targets.value, job.frozen_bits, job.trains_weights) == (32, "all", 4, False)
    assert (job.optimizer.value, job.trainer.fused_loss.value) == ("paged_adam8bit", "linear")
    assert job.trainer.main_dtype.value == "bf16"
    script.write_text(f"{program}\n")
    job = api.lint_launch(script, "dgx-h100", model="llama-3.2-1b", search=False).job
    assert (job.lora_rank, job.trains_weights, job.optimizer.value) == (0, True, "adam")


@pytest.mark.parametrize("flag", ["--lora_r 16", "--load_in_4bit True"])
def test_a_program_s_flag_that_changes_what_is_trained_is_refused_rather_than_dropped(
    tmp_path: Path, flag: str
) -> None:
    script = tmp_path / "train.sh"
    words = "--per_device_train_batch_size 2 --bf16 True --max_seq_length 4096 --lora_alpha 32 --save_steps 5"
    script.write_text(f"torchrun --nproc_per_node 8 sft.py {words} {flag}\n")
    with pytest.raises(InputError, match=flag.split()[0]):
        api.lint_launch(script, "dgx-h100", model="llama-3.2-1b", search=False)
    script.write_text(f"torchrun --nproc_per_node 8 sft.py {words} {flag.split()[0]} False\n")
    assert api.lint_launch(script, "dgx-h100", model="llama-3.2-1b", search=False).fits


@pytest.mark.parametrize(
    ("words", "variables"),
    [
        (f"--swiglu $EXTRA {REST}", ("$EXTRA",)),
        (f"{REST} $MORE", ("$MORE",)),
        (f"{REST} --micro-batch-size 1 $A $(cat flags)", ("$A", "$(...)")),
        (f"{REST} --log-throughput ${{EXTRA_ARGS[@]}}", ("$EXTRA_ARGS",)),
        (f"{REST} --data-path $A $B --save $SAVE_TO", ()),
        (f'{REST} ${{EXTRA:-}} "$@"', ()),
    ],
)
def test_a_variable_that_may_hold_any_arguments_leaves_open_whether_it_fits(
    words: str, variables: tuple[str, ...], tmp_path: Path
) -> None:
    file = script(tmp_path, f"{words} --tensor-model-parallel-size 8 --sequence-parallel")
    reading = read_launch(file)
    assert tuple(name for name in reading.unknown if name.startswith("$")) == variables
    answer = api.lint_launch(file, "dgx-h100", search=False)
    assert answer.status == ("unknown" if variables else "feasible")
    assert tuple(turn.field for turn in answer.depends_on if turn.of_arguments) == variables


def test_what_a_launch_does_not_show_is_named_before_its_price(tmp_path: Path) -> None:
    file = script(tmp_path, f"{REST} --tensor-model-parallel-size 8 --swiglu $EXTRA")
    answer = api.lint_launch(file, "dgx-h100", search=False)
    first = next(iter(_lines(answer)))
    assert "$EXTRA holds arguments that are not in the file: the run does not fit if they add more than" in first


def test_commands_of_keys_name_variables_that_may_hold_any_arguments() -> None:
    behind = [f"{HOLE}CONFIG_FILE{HOLE}", "steps=10", f"{HOLE}EXTRA{HOLE}", "--model.flavor", f"{HOLE}FLAVOR{HOLE}"]
    assert unset_arguments(behind) == ("$EXTRA",)


def test_memory_that_an_unsaid_type_of_weights_makes_half_again_is_said_though_both_fit(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(
        "recipe: TrainFinetuneRecipeForNextTokenPrediction\n"
        "step_scheduler: {global_batch_size: 16, local_batch_size: 1}\n"
        "distributed: {strategy: fsdp2, ep_size: 8, activation_checkpointing: true}\n"
        "optimizer: {_target_: torch.optim.AdamW}\n"
    )
    path = tmp_path / "recipe.yaml"
    answer = api.lint_launch(path, "dgx-h100", model="qwen3-30b-a3b", num_devices=8, seq_len=2048, search=False)
    (turn,) = [turn for turn in answer.depends_on if turn.field == "main_dtype"]
    assert turn.value == "fp32"
    assert turn.figures["fuller_bytes"] > 1.5 * answer.priced.footprint.device_bytes
    assert "instead of bf16" in " ".join(turn_lines(answer.depends_on))


def test_a_pack_s_documents_are_hidden_from_each_other_and_the_interval_holds_that_they_are_not(tmp_path: Path) -> None:
    words = "--per_device_train_batch_size 2 --bf16 True --max_seq_length 4096 --packing"
    script = tmp_path / "train.sh"
    script.write_text(f"accelerate launch --num_processes 8 --multi_gpu --use_fsdp sft.py {words}\n")
    packed = api.lint_launch(script, "dgx-h100", model="llama-3.2-1b", search=False)
    whole = api.lint_launch(script, "dgx-h100", model="llama-3.2-1b", search=False, fix={"document_len": "all"})
    assert (packed.job.document_len, whole.job.document_len) == (1024, 0)
    assert packed.priced.step_s < whole.priced.step_s <= packed.priced.high_s
    assert [turn.value for turn in packed.depends_on if turn.field == "document_len"] == ["all"]
    script.write_text(f"{script.read_text().strip()} --use_peft --lora_r 16\n")
    adapters = api.lint_launch(script, "dgx-h100", model="llama-3.2-1b", search=False)
    assert adapters.job.document_len == 0
    assert any("priced as whole ones" in note for note in adapters.assumptions)


@pytest.mark.parametrize(("length", "document"), [(8192, 1024), (2048, 1024), (1000, 1000), (5000, 1000), (1021, 1021)])
def test_a_document_is_the_longest_part_of_a_pack_of_at_most_1024_tokens(length: int, document: int) -> None:
    assert packed_document(length) == document


def test_a_program_that_shares_two_names_with_megatron_is_not_taken_for_it(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(
        "torchrun --nproc_per_node 4 learn.py --lr 0.001 --optimizer adamw --batch_size 64\n"
    )
    with pytest.raises(InputError, match="a trainer that is known"):
        read_launch(tmp_path / "a.sh")
