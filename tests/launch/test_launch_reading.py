"""Launches as people write them: variables, arrays, tests, batch systems; what is unknown is listed, never dropped."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.errors import InputError
from sartor.launch.files import LaunchReading, read_launch
from sartor.launch.megatron_model import pattern_text, read_layout
from sartor.launch.megatron_model_read import expand_pattern
from sartor.launch.plan import LaunchKind
from sartor.launch.shell import read_shell
from sartor.launch.shell_words import HOLE
from sartor.launch.stated import read_yaml, write_yaml
from sartor.model.training import ContextParallel, PipelineSchedule, Recipe, Recompute
from sartor.operators import DType

GPT = """#!/bin/bash
# Runs a "345M" model, written the way examples are.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${SLURM_NNODES:-"4"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1 #<Specify path>
TP=4

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr ${MASTER_ADDR}
)
GPT_MODEL_ARGS=(
    --num-layers 24   # depth
    --hidden-size 2048
    --num-attention-heads 16
    --seq-length 2048
    --max-position-embeddings 2048
)
TRAINING_ARGS="
    --micro-batch-size 2 \\
    --global-batch-size 256
    --lr 0.00015 --bf16
"
if [ "$TP" -gt 1 ]; then
    EXTRA=" --sequence-parallel"
else
    EXTRA=""
fi
if [[ -n $UNSET_ANYWHERE ]]; then EXTRA+=" --tp-comm-overlap"; fi
for f in a b; do
    EXTRA+=" --never"
done
EXTRA+=" --recompute-activations --use-distributed-optimizer --mystery-flag 3"

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} \\
    $TRAINING_ARGS $EXTRA \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 2 \\
    --num-layers-per-virtual-pipeline-stage 3 \\
    --save "$CHECKPOINT_PATH" --vocab-size 50257 2>&1 | tee run.log
"""


def read_text(tmp_path: Path, text: str, name: str = "run.sh", **asked: int) -> LaunchReading:
    path = tmp_path / name
    path.write_text(text)
    return read_launch(path, **asked)


def test_a_script_with_variables_arrays_and_tests_is_the_launch_it_runs(tmp_path: Path) -> None:
    reading = read_text(tmp_path, GPT)
    plan, shape = reading.plan, reading.shape
    assert reading.kind is LaunchKind.MEGATRON
    assert shape is not None
    assert (shape.num_layers, shape.hidden_size, shape.num_heads, shape.ffn_hidden_size) == (24, 2048, 16, 8192)
    assert shape.vocab_size == 50688, "padded to a multiple of 128 x tp"
    assert (plan.dims.tp, plan.dims.pp, plan.dims.dp, plan.num_devices) == (4, 2, 4, 32)
    assert plan.dims.sequence_parallel
    assert (plan.microbatch_size, plan.num_microbatches, plan.virtual_stages) == (2, 32, 4)
    assert (plan.recompute, plan.zero_stage) == (Recompute.SELECTIVE, 1)
    assert reading.parts.recipe is Recipe.BF16
    assert not reading.parts.trainer.tp_overlap, "the test on an unset variable fails"
    assert reading.job().tokens_per_step == 256 * 2048


def test_unknown_flags_are_listed_and_missing_facts_said(tmp_path: Path) -> None:
    reading = read_text(tmp_path, GPT)
    assert reading.unknown == ("--mystery-flag 3",)
    assert "--lr" in reading.ignored
    said = " ".join(reading.assumptions)
    for words in (
        "--ffn-hidden-size=8192",
        "SLURM_NNODES=4",
        "`for` is skipped: loops are not evaluated",
        "padded to 50688",
    ):
        assert words in said


def test_a_misspelt_flag_is_listed_with_the_one_it_looks_like(tmp_path: Path) -> None:
    reading = read_text(tmp_path, "torchrun --nproc-per-node 8 pretrain_gpt.py --bf16 --micro_batch_size 4")
    assert reading.unknown == ("--micro_batch_size 4 (did you mean --micro-batch-size?)",)


def test_what_only_the_running_shell_knows_is_an_assumption_and_no_guess(tmp_path: Path) -> None:
    text = "torchrun --nproc-per-node 8 pretrain_gpt.py --bf16 --micro-batch-size $MBS --global-batch-size $(cat gbs)"
    reading = read_text(tmp_path, text)
    assert "--micro-batch-size is $MBS, which the file does not set: ignored" in reading.assumptions
    assert "--global-batch-size is $(...), which the file does not set: ignored" in reading.assumptions


@pytest.mark.parametrize(
    ("header", "command"),
    [
        ("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n", "srun python pretrain_gpt.py"),
        ("#SBATCH -N 4\n#SBATCH --gres=gpu:8\n", "srun bash -c python pretrain_gpt.py"),
        ("", "srun -N 4 --ntasks-per-node=8 --nodes=4 python -u pretrain_gpt.py"),
        ("WORLD_SIZE=32\n", "python pretrain_gpt.py"),
        ("", "python -m torch.distributed.launch --nproc_per_node=8 --nnodes=4 pretrain_gpt.py"),
        ("#SBATCH --nodes=4\n", "torchrun --nproc-per-node 8 --nnodes $SLURM_NNODES pretrain_gpt.py"),
    ],
)
def test_devices_are_counted_by_launcher_header_or_world_size(tmp_path: Path, header: str, command: str) -> None:
    text = f"{header}{command} --bf16 --tensor-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 8"
    assert read_text(tmp_path, text).num_devices == 32


def test_a_command_inside_a_quoted_word_is_found(tmp_path: Path) -> None:
    text = """
A="--num-layers 4 --hidden-size 64 --num-attention-heads 4 --bf16"
srun -N 2 bash -c "torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py $A --micro-batch-size 1 --seq-length 64"
"""
    reading = read_text(tmp_path, text)
    assert reading.num_devices == 16
    assert reading.shape is not None
    assert reading.shape.num_layers == 4


def test_the_number_of_devices_may_be_given_and_must_fit(tmp_path: Path) -> None:
    text = "python pretrain_gpt.py --bf16 --tensor-model-parallel-size 8 --micro-batch-size 1"
    assert read_text(tmp_path, text, num_devices=64).plan.dims.dp == 8
    with pytest.raises(InputError, match="num_devices=12: must be a multiple of tp x pp x cp = 8; nearest: 8 and 16"):
        read_text(tmp_path, text, num_devices=12)


def test_a_plain_file_of_arguments_is_a_launch(tmp_path: Path) -> None:
    text = "--num-layers 8\n--hidden-size 512 --num-attention-heads 8\n--swiglu\n--bf16\n--micro-batch-size 2\n"
    reading = read_text(tmp_path, text, "args.txt", num_devices=4)
    assert reading.shape is not None
    assert reading.shape.ffn_hidden_size == 512 * 8 // 3 // 64 * 64
    assert reading.plan.dims.dp == 4


def test_megatrons_own_recipes_of_flags_as_keys_are_a_launch(tmp_path: Path) -> None:
    text = """
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 512
  --num-attention-heads: 8
  --micro-batch-size: 4
  --global-batch-size: 32
  --bf16: true
  --moe-layer-freq: ([0]*3+[1]*9)
  --num-experts: 8
"""
    reading = read_text(tmp_path, text, "model_config.yaml", num_devices=8)
    assert reading.shape is not None
    assert [int(run.count) for run in reading.shape.main.runs] == [3, 9]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--num-layers 8 --hidden-size 64", "--num-attention-heads=missing"),
        ("--num-layers eight --hidden-size 64 --num-attention-heads 4", "--num-layers=eight"),
        ("--num-layers 8 --hidden-size 63 --num-attention-heads 4", "--num-attention-heads=4: must divide"),
        ("--micro-batch-size 3 --global-batch-size 8", "--global-batch-size=8: must be a multiple"),
        ("--micro-batch-size 0", "--micro-batch-size=0"),
        ("--bf16 --fp16", "--fp16="),
        ("--fp8-format hybrid --fp8-recipe tensorwize", "--fp8-recipe=tensorwize"),
        ("--recompute-granularity", "--recompute-granularity="),
        ("--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout Et|tL", "--pipeline-model-parallel-layout"),
    ],
)
def test_values_that_cannot_be_are_refused_by_their_flag(tmp_path: Path, flags: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        read_text(tmp_path, f"torchrun --nproc-per-node 4 pretrain_gpt.py {flags}")
    assert str(caught.value).startswith(sentence)


def test_uneven_stages_are_read_in_all_three_ways(tmp_path: Path) -> None:
    head = "torchrun --nproc-per-node 4 pretrain_gpt.py --num-layers 14 --hidden-size 64 --num-attention-heads 4 --bf16"
    pp = f"{head} --micro-batch-size 1 --pipeline-model-parallel-size 4"
    ends = read_text(tmp_path, f"{pp} --decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 3")
    layout = read_text(tmp_path, f"{pp} --pipeline-model-parallel-layout 'Et*3|(tttt|)*2t*3L'")
    weights = read_text(
        tmp_path, f"{pp} --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"
    )
    assert ends.plan == layout.plan == weights.plan
    assert ends.plan.stage_layers == (3, 4, 4, 3)


def test_layouts_are_stages_of_layers() -> None:
    assert read_layout("E|(t|)*3,m|m||L") == (0, 1, 1, 1, 0, 0, 0, 0)
    assert read_layout("Et*10|t*10L") == (10, 10)
    with pytest.raises(InputError):
        read_layout("Et*3|q|L")
    with pytest.raises(InputError):
        read_layout("(" * 50 + "t" + ")*9" * 50)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=40))
def test_layer_patterns_survive_writing_and_reading(bits: list[int]) -> None:
    assert expand_pattern("--moe-layer-freq", pattern_text(bits)) == bits


@pytest.mark.parametrize("text", ["__import__('os')", "[1]*999999999", "[0", "", "2*3", "[1]*[2]", "([1]*3"])
def test_patterns_are_read_and_never_evaluated(text: str) -> None:
    with pytest.raises(InputError):
        expand_pattern("--moe-layer-freq", text)


TITAN = """
[job]
dump_folder = "./outputs"

[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]

[training]
local_batch_size = 8
seq_len = 8192
steps = 3000

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 4
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = 10
pipeline_parallel_first_stage_less_layers = 0
pipeline_parallel_last_stage_less_layers = 0
pipeline_parallel_microbatch_size = 2
context_parallel_degree = 1
tensor_paralel_degree = 8

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"

[float8]
recipe_name = "rowwise"
"""


def test_a_torchtitan_config_is_model_job_and_plan(tmp_path: Path) -> None:
    reading = read_text(tmp_path, TITAN, "llama3_70b.toml", num_devices=64)
    plan = reading.plan
    assert reading.shape is not None
    assert reading.shape.num_layers == 80
    assert (plan.dims.tp, plan.dims.pp, plan.dims.dp, plan.virtual_stages) == (4, 4, 4, 2)
    assert (plan.microbatch_size, plan.num_microbatches, plan.zero_stage) == (2, 4, 2)
    assert plan.schedule == PipelineSchedule.ONE_F_ONE_B
    assert (plan.recompute, plan.recompute_layers) == (Recompute.FULL, 10)
    assert reading.parts.recipe is Recipe.FP8_ROWWISE
    assert reading.parts.context_parallel is ContextParallel.ALL_GATHER
    assert reading.unknown == ("parallelism.tensor_paralel_degree (did you mean parallelism.tensor_parallel_degree?)",)
    assert any("every second layer" in line for line in reading.assumptions)


def test_the_command_line_wins_over_the_toml(tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text(TITAN)
    text = "NGPU=32\ntorchrun --nproc_per_node=8 --nnodes 4 -m torchtitan.train --job.config_file ./train.toml "
    reading = read_text(tmp_path, text + "--parallelism.pipeline_parallel_degree 1 --training.local_batch_size 1")
    assert (reading.num_devices, reading.plan.dims.pp, reading.plan.microbatch_size) == (32, 1, 1)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "local_batch_size = 8",
            "local_batch_size = 7",
            "parallelism.pipeline_parallel_microbatch_size=2: must divide",
        ),
        ('"Interleaved1F1B"', '"Interlaced"', "parallelism.pipeline_parallel_schedule=Interlaced"),
        ("layers_per_stage = 10", "layers_per_stage = 9", "parallelism.pipeline_parallel_layers_per_stage=9"),
        ('mode = "selective"', 'mode = "some"', "activation_checkpoint.mode=some"),
        ("tensor_parallel_degree = 4", "tensor_parallel_degree = 3", "num_devices=64: must be a multiple"),
        ("seq_len = 8192", 'seq_len = "long"', "training.seq_len=long"),
        ("[model]", "[model", "--launch=a.toml"),
    ],
)
def test_configs_that_cannot_be_are_refused_by_their_field(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        read_text(tmp_path, TITAN.replace(old, new, 1), "a.toml", num_devices=64)
    assert str(caught.value).startswith(sentence)


def test_deepspeeds_auto_is_what_the_program_says(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(
        '{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"},'
        '"zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8}, "my_field": 1, "fp16": {"enabled": true}}'
    )
    text = "deepspeed --num_gpus 8 train.py --deepspeed ds.json --per_device_train_batch_size 2 --max_length 2048"
    reading = read_text(tmp_path, text)
    assert (reading.plan.dims.dp, reading.plan.microbatch_size, reading.plan.zero_stage) == (8, 2, 3)
    assert (reading.parts.seq_len, reading.parts.recipe) == (2048, Recipe.FP16)
    assert reading.unknown == ("my_field",)


@pytest.mark.parametrize(
    ("zero", "overlaps"),
    [
        ('"stage": 3', True),
        ('"stage": 3, "overlap_comm": "auto"', True),
        ('"stage": 3, "overlap_comm": false', False),
        ('"stage": 2', False),
        ('"stage": 2, "overlap_comm": true', True),
    ],
)
def test_deepspeed_overlaps_by_default_at_stage_3_alone(tmp_path: Path, zero: str, overlaps: bool) -> None:
    text = f'{{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {{{zero}}}}}'
    assert read_text(tmp_path, text, "ds.json", num_devices=8).parts.trainer.dp_overlap is overlaps


@pytest.mark.parametrize(
    ("fields", "reduced"),
    [
        ('"bf16": {"enabled": true}', DType.BF16),
        ('"fp16": {"enabled": true}', DType.FP16),
        ('"fp16": {"enabled": false}', DType.FP32),
        ('"bf16": {"enabled": true}, "communication_data_type": "fp32"', DType.FP32),
    ],
)
def test_deepspeed_reduces_gradients_in_the_type_that_it_trains_in(tmp_path: Path, fields: str, reduced: DType) -> None:
    text = f'{{"train_micro_batch_size_per_gpu": 2, {fields}}}'
    assert read_text(tmp_path, text, "ds.json", num_devices=8).parts.trainer.grad_dtype is reduced


def test_deepspeeds_own_fields_without_a_price_are_not_unknown(tmp_path: Path) -> None:
    text = (
        '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"},'
        '"zero_hpz_partition_size": 8, "zero_quantized_weights": true, "zero_quantized_gradients": false}, "my": 1}'
    )
    reading = read_text(tmp_path, text, "ds.json", num_devices=8)
    assert reading.unknown == ("my",)
    at = "zero_optimization."
    wanted = ("offload_param.device=cpu", "zero_hpz_partition_size=8", "zero_quantized_weights=True")
    assert reading.unpriced == tuple(at + each for each in wanted)
    assert reading.ignored == ("zero_optimization.zero_quantized_gradients",)


def test_a_deepspeed_config_by_itself_needs_a_model_and_says_so(tmp_path: Path) -> None:
    text = '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}'
    reading = read_text(tmp_path, text, "ds.json")
    assert reading.plan.dims.dp == 8
    with pytest.raises(InputError, match="does not say the model's sizes; give MODEL"):
        reading.job()


def test_accelerates_hybrid_shards_and_fsdp1_words_are_read(tmp_path: Path) -> None:
    config = {
        "distributed_type": "FSDP",
        "mixed_precision": "bf16",
        "num_machines": 2,
        "num_processes": 16,
        "downcast_bf16": "no",
        "fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP", "fsdp_activation_checkpointing": True},
    }
    reading = read_text(tmp_path, write_yaml(config), "a.yaml")
    assert (reading.plan.dims.dp, reading.plan.zero_stage, reading.plan.recompute) == (16, 2, Recompute.FULL)


@pytest.mark.parametrize("name", ["missing.sh", "folder"])
def test_a_launch_that_is_not_there_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="no such file"):
        read_launch(tmp_path / name)


@pytest.mark.parametrize("text", ["", "\n\n", "echo hello", "#!/bin/bash\nset -e\n"])
def test_a_file_without_a_training_command_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        read_text(tmp_path, text)


def test_unclosed_quotes_are_refused_with_their_line() -> None:
    with pytest.raises(InputError, match=r'line 2.*has a quote " that is never closed'):
        read_shell('A=1\nB="never')


def test_growth_without_end_is_refused() -> None:
    doubling = "A=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 40
    with pytest.raises(InputError, match="grows beyond"):
        read_shell(doubling)


@pytest.mark.parametrize("end", [";", "|", "&", "(", "&&"])
def test_an_array_that_is_broken_off_ends(end: str) -> None:
    assert read_shell(f"A=(--bf16 {end} --fp16)\ntorchrun x.py ${{A[@]}}").commands[-1][:2] == ["torchrun", "x.py"]


PIECES = st.sampled_from(
    ["torchrun ", "x.py ", "--num-layers ", "8 ", '"', "'", "$A", "${A:-", "}", "$((", "))", "$(", ")", "(", "A=",
     "+=(", "\n", ";", "|", "if [ ", " ]; then ", "else ", "fi ", "for ", "done ", "case ", "#", "\\\n",
     "--bf16 ", "=", "`"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=60).map("".join))
def test_no_script_is_a_traceback(text: str) -> None:
    try:
        shell = read_shell(text)
    except InputError:
        return
    assert all(isinstance(word, str) for command in shell.commands for word in command)


FLAG_WORDS = st.sampled_from(
    ["--num-layers", "--hidden-size", "--num-attention-heads", "--moe-layer-freq", "--num-experts", "--window-size",
     "--bf16", "--pipeline-model-parallel-layout", "--pipeline-model-parallel-size", "--vocab-size", "--cp-comm-type",
     "--swiglu", "--recompute-num-layers", "--recompute-granularity", "full", "block", "8", "-1", "0", "4", "1e9",
     "Et|tL", "[1]*8", "x", "--group-query-attention", "--num-query-groups", "--multi-latent-attention", "99999999",
     "--context-parallel-size"]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(words=st.lists(FLAG_WORDS, max_size=30))
def test_no_flags_are_a_traceback(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("flags") / "run.sh"
    path.write_text("torchrun --nproc-per-node 8 pretrain_gpt.py " + " ".join(f"'{w}'" for w in words))
    try:
        reading = read_launch(path)
    except InputError:
        return
    assert HOLE not in " ".join((*reading.unknown, *reading.assumptions))


def test_yaml_beyond_what_is_read_is_refused_with_its_line() -> None:
    aliased, tagged, dated = "a: &x 1\nb: *x", "a: !!python/object:os.system 1", "a: 2020-99-99"
    for text in (
        aliased,
        tagged,
        dated,
        "a:\n\tb: 1",
        "a: 1\na: 2",
        "- 1",
        "? [1]\n: 2",
        "\0",
        "a: [",
        "a: 1\n---\nb: 1",
    ):
        with pytest.raises(InputError, match="line"):
            read_yaml(text)


def test_deep_or_long_yaml_ends_in_a_sentence(tmp_path: Path) -> None:
    for text in ("a: " + "[" * 100_000, "a: " + "{a: " * 20_000, "k: 1\n" * 100_000):
        with pytest.raises(InputError):
            read_text(tmp_path, text, "a.yaml")


SCALARS = st.one_of(st.booleans(), st.integers(-(10**9), 10**9), st.none(), st.text("abc: #'-yesno0.", max_size=8))


@given(st.dictionaries(st.sampled_from("abcdef"), st.one_of(SCALARS, st.dictionaries(st.sampled_from("xyz"), SCALARS))))
def test_yaml_survives_writing_and_reading(value: dict[str, object]) -> None:
    assert read_yaml(write_yaml(value)) == value


def test_the_first_way_to_say_float8_is_heard_and_fields_of_no_version_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[optimizer]\nlr = 1e-4\nlearing_rate = 2\n'
        "[float8]\nenable_float8_linear = true\nweird = 1\n"
    )
    reading = read_launch(path, num_devices=8)
    assert reading.parts.recipe is Recipe.FP8_CURRENT
    assert set(reading.unknown) == {"optimizer.learing_rate", "float8.weird"}
    assert reading.ignored == ("optimizer.lr",)


def test_an_fsdp_field_of_no_version_is_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_version: 2\n  fsdp_weird: 3\n")
    assert [each for each in read_launch(path).unknown if "weird" in each]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "distributed_type: FSDP\nnum_processes: 8\nfsdp_config:\n  fsdp_offload_params: true\n"),
        ("t.toml", '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nenable_cpu_offload = true\n'),
    ],
)
def test_offloaded_parameters_are_said_to_have_no_price(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    reading = read_launch(tmp_path / name, num_devices=8)
    assert reading.plan.optimizer_offload
    assert any("only the offloading of optimizer states is priced" in note for note in reading.assumptions)
