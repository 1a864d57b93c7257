"""Scripts in the forms that trainers' own example folders have, all own texts: each is read as what it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from sartor.errors import InputError
from sartor.launch.files import read_launch
from sartor.launch.plan import LaunchKind
from sartor.launch.shell import read_shell
from sartor.model.training import Recipe, Recompute

SIZES = "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048"
BATCH = "--micro-batch-size 2 --global-batch-size 512 --fp16"


def put(folder: Path, text: str, name: str = "run.sh") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_megatron_under_deepspeed_has_deepspeeds_stage_recomputation_and_offload(tmp_path: Path) -> None:
    options = f"{SIZES} {BATCH} --deepspeed --deepspeed_config ds.json --zero-stage 2 --checkpoint-activations"
    start = "deepspeed -i worker-0:0,1,2,3@worker-1:0,1,2,3 pretrain_gpt.py $@"
    reading = read_launch(put(tmp_path, f'options=" {options} --cpu-optimizer --num-experts 1"\n{start} $options\n'))
    plan = reading.plan
    assert (reading.num_devices, plan.zero_stage, plan.recompute) == (8, 2, Recompute.FULL)
    assert plan.optimizer_offload
    assert reading.parts.trainer is not None
    assert reading.parts.trainer.name == "megatron-deepspeed"
    assert reading.shape is not None
    assert reading.shape.moe_ffn is None
    assert (*reading.unknown, *reading.unpriced) == ()


def test_linear_biases_of_positions_are_the_models(tmp_path: Path) -> None:
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {BATCH} --position-embedding-type alibi\n"
    shape = read_launch(put(tmp_path, text)).shape
    assert shape is not None
    assert shape.numerics is not None
    assert (shape.numerics.get("position_bias"), int(shape.learned_positions)) == ("alibi", 0)


def test_a_script_that_hands_another_to_the_batch_system_starts_it(tmp_path: Path) -> None:
    put(tmp_path, 'srun -l sh -c "python -u pretrain_gpt.py $PARAMS $EXTRA --micro-batch-size $1"\n', "SRUN.sh")
    put(tmp_path, f'PARAMS="--tensor-model-parallel-size ${{TP}} {SIZES} --global-batch-size 64"\n', "CONFIG.sh")
    text = "TP=4\nEXTRA=--bf16\nexport TP EXTRA LATER=1\n. `pwd`/CONFIG.sh\n"
    reading = read_launch(put(tmp_path, f"{text}sbatch --nodes=4 --ntasks-per-node=8 `pwd`/SRUN.sh 2\nexit 0\n"))
    assert (reading.num_devices, reading.plan.dims.tp, reading.plan.microbatch_size) == (32, 4, 2)


@pytest.mark.parametrize(("tp", "said"), [(1, False), (2, True)])
def test_arithmetic_compares_and_chooses(tp: int, said: bool, tmp_path: Path) -> None:
    text = f'TP={tp}\nOVERLAP=$(( ($TP > 1) ? 1 : 0 ))\nif [ $OVERLAP -eq 1 ]; then X="--tp-comm-overlap"; fi\n'
    start = f"torchrun --nproc_per_node 8 pretrain_gpt.py {SIZES} {BATCH} $X\n"
    trainer = read_launch(put(tmp_path, text + start)).parts.trainer
    assert trainer is not None
    assert trainer.tp_overlap is said


def test_what_nobody_sets_equals_nothing() -> None:
    text = 'if [ "${DEBUG}" = "1" ]; then\n X=yes\nelse\n X=no\nfi\nif [[ $MODE != fast ]]; then Y=slow; fi\n'
    assert read_shell(text).variables == {"X": ["no"], "Y": ["slow"]}


NEMO = (
    "python megatron_gpt_pretraining.py --config-path=conf --config-name=gpt trainer.devices=8 trainer.num_nodes=4 "
    "trainer.precision=bf16 model.micro_batch_size=1 ++model.optim.name=distributed_fused_adam model.activation=swiglu "
    "model.encoder_seq_length=4096 model.hidden_size=4096 model.num_attention_heads=32 model.sequence_parallel=True"
)


def test_nemos_fields_on_the_command_line_win_over_its_file(tmp_path: Path) -> None:
    put(tmp_path, "trainer: {devices: 1, num_nodes: 1}\nmodel: {num_layers: 32, global_batch_size: 256}\n", "gpt.yaml")
    reading = read_launch(put(tmp_path, NEMO + " model.tensor_model_parallel_size=4\n"))
    assert (reading.num_devices, reading.plan.dims.tp, reading.plan.num_microbatches) == (32, 4, 32)
    assert (reading.parts.recipe, reading.parts.seq_len) == (Recipe.BF16, 4096)
    assert reading.shape is not None
    assert int(reading.shape.num_layers) == 32


TRAINER = "train.py --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_length 4096"


def test_accelerates_own_options_say_a_plan_without_a_file(tmp_path: Path) -> None:
    mesh = (
        "--parallelism-config-dp-replicate-size 2 --parallelism-config-tp-size 2 --parallelism-config-dp-shard-size 2"
    )
    options = f"--num-processes 8 --mixed_precision bf16 --use-fsdp --fsdp_activation_checkpointing true {mesh}"
    reading = read_launch(put(tmp_path, f"accelerate launch {options} {TRAINER}\n"))
    plan = reading.plan
    assert (reading.kind, reading.num_devices) == (LaunchKind.ACCELERATE, 8)
    assert (plan.dims.tp, plan.dims.dp, plan.zero_stage, plan.shard_group) == (2, 4, 3, 2)
    assert (plan.recompute, reading.parts.recipe) == (Recompute.FULL, Recipe.BF16)
    assert (*reading.unknown, *reading.unpriced) == ()


def test_deepspeed_under_accelerate_is_read_as_deepspeed(tmp_path: Path) -> None:
    own = "deepspeed_config: {zero_stage: 3, offload_optimizer_device: cpu, gradient_accumulation_steps: 4}\n"
    text = f"distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\n{own}"
    put(tmp_path, text, "a.yaml")
    reading = read_launch(put(tmp_path, f"accelerate launch --config_file a.yaml --num_processes 16 {TRAINER}\n"))
    plan = reading.plan
    assert (reading.kind, reading.num_devices, reading.parts.recipe) == (LaunchKind.DEEPSPEED, 16, Recipe.BF16)
    assert (plan.zero_stage, plan.num_microbatches, plan.optimizer_offload) == (3, 4, True)
    put(tmp_path, text.replace(own, "deepspeed_config: {deepspeed_config_file: ds.json}\n"), "a.yaml")
    with pytest.raises(InputError, match="must be in the folder of the file that names it"):
        read_launch(tmp_path / "run.sh")
    put(tmp_path, '{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}', "ds.json")
    assert read_launch(tmp_path / "run.sh").plan.zero_stage == 2


def test_hugging_faces_trainer_alone_replicates_or_shards_by_fsdp(tmp_path: Path) -> None:
    plain = read_launch(put(tmp_path, f"torchrun --nproc_per_node 8 {TRAINER} --bf16\n"))
    assert (plain.kind, plain.plan.zero_stage, plain.parts.recipe) == (LaunchKind.ACCELERATE, 0, Recipe.BF16)
    sharded = read_launch(put(tmp_path, f"torchrun --nproc_per_node 8 {TRAINER} --bf16 --fsdp full_shard\n"))
    assert sharded.plan.zero_stage == 3


@pytest.mark.parametrize(
    "command",
    [
        "torchrun --nproc_per_node 8 scripts/performance/run_script.py --model_name llama3 --num_gpus 8",
        "nemo llm pretrain --factory llama3_8b trainer.num_nodes=2 trainer.devices=8",
    ],
)
def test_a_recipe_by_name_is_no_launch_of_megatrons_defaults(command: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="recipe of this name"):
        read_launch(put(tmp_path, command + "\n"), num_devices=16)
