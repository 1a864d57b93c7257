"""The origin of every fact of a launch: stated where an argument of its files says it, and nowhere else."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from tests.launch.test_launch_roundtrip import plans, written

from sartor import api
from sartor.launch.files import read_launch, save_files
from sartor.launch.options import facts_of, with_origins
from sartor.launch.plan import WRITTEN, LaunchKind
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.run.fields import Origin, Run

MEGATRON = {
    "tp": "--tensor-model-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "cp": "--context-parallel-size",
    "ep": "--expert-model-parallel-size",
    "virtual_stages": "--num-virtual-stages-per-pipeline-rank|--pipeline-model-parallel-layout",
    "microbatch_size": "--micro-batch-size",
    "sequence_parallel": "--sequence-parallel",
    "zero_stage": "--use-distributed-optimizer|--use-megatron-fsdp",
    "optimizer_offload": "--optimizer-cpu-offload",
    "recompute": "--recompute-granularity",
    "recompute_layers": "--recompute-num-layers",
    "global_batch_size": "--global-batch-size",
    "seq_len": "--seq-length",
    "dtype": "--bf16|--fp16|--fp8-format|--fp4-format",
    "optimizer": "--optimizer",
    "attention": "--attention-backend",
    "context_parallel": "--cp-comm-type",
}
RENAMED = {
    "ep": "expert_model_parallel_size",
    "virtual_stages": "virtual_pipeline_model_parallel_size|pipeline_model_parallel_layout",
    "zero_stage": "use_distributed_optimizer|use_megatron_fsdp",
    "dtype": "mixed_precision",
    "optimizer": "optimizer.optimizer",
    "microbatch_size": "micro_batch_size",
}
PROGRAM = {
    "microbatch_size": "--per_device_train_batch_size",
    "recompute": "--gradient_checkpointing",
    "attention": "--attn_implementation",
    "seq_len": "--max_length",
}
ARGUMENTS: dict[LaunchKind, dict[str, str]] = {
    LaunchKind.MEGATRON: MEGATRON,
    LaunchKind.MEGATRON_BRIDGE: {
        name: RENAMED.get(name, words.replace("--", "").replace("-", "_")) for name, words in MEGATRON.items()
    },
    LaunchKind.TORCHTITAN: {
        "tp": "tensor_parallel_degree",
        "pp": "pipeline_parallel_degree",
        "cp": "context_parallel_degree",
        "ep": "expert_parallel_degree",
        "schedule": "pipeline_parallel_schedule",
        "virtual_stages": "pipeline_parallel_layers_per_stage|module_fqns_per_model_part",
        "sequence_parallel": "enable_sequence_parallel",
        "zero_stage": "fsdp_reshard_after_forward",
        "optimizer_offload": "enable_cpu_offload",
        "recompute": "activation_checkpoint",
        "global_batch_size": "global_batch_size",
        "seq_len": "seq_len",
        "dtype": "mixed_precision_param|converters|recipe_name",
        "context_parallel": "context_parallel_rotate_method",
    },
    LaunchKind.DEEPSPEED: PROGRAM
    | {
        "tp": "autotp_size",
        "microbatch_size": "train_micro_batch_size_per_gpu",
        "zero_stage": "stage",
        "optimizer_offload": "offload_optimizer",
        "global_batch_size": "train_batch_size",
        "dtype": "bf16|fp16",
        "optimizer": "optimizer",
        "recompute": "--gradient_checkpointing|activation_checkpointing",
    },
    LaunchKind.ACCELERATE: PROGRAM
    | {
        "tp": "parallelism_config_tp_size",
        "cp": "parallelism_config_cp_size",
        "zero_stage": "distributed_type",
        "optimizer_offload": "fsdp_offload_params",
        "recompute": "--gradient_checkpointing|fsdp_activation_checkpointing",
        "dtype": "mixed_precision",
        "optimizer": "--optim",
        "context_parallel": "parallelism_config_cp_comm_strategy",
    },
}
"""The arguments that state an option in each trainer's files, written down here by hand."""


def no_effect(plan: TrainingPlan, *, sets: bool) -> set[str]:
    """Axes whose value follows from others, whatever stands in a file that has ``sets`` of shards or not."""
    dims = plan.dims
    axes = {"sequence_parallel"} if dims.tp == 1 else set[str]()
    axes |= {"virtual_stages", "schedule"} if dims.pp == 1 else set[str]()
    return axes | ({"zero_stage"} if dims.dp * dims.cp == 1 or (sets and plan.zero_stage == 0) else set[str]())


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.value)
def test_only_what_stands_in_a_written_launch_is_stated(
    kind: LaunchKind, tmp_path_factory: pytest.TempPathFactory
) -> None:
    counted: Counter[bool] = Counter()

    @settings(max_examples=60, deadline=None)
    @given(asked=plans(kind))
    def law(asked: tuple[TrainingJob, TrainingPlan]) -> None:
        job, plan = asked
        made = written(kind, job, plan)
        counted[made is not None] += 1
        if made is None:
            return
        folder = tmp_path_factory.mktemp(kind.value)
        save_files(made, folder)
        reading = read_launch(folder, shape=job.shape)
        facts = facts_of(reading.job(job.shape), reading.plan)
        run = with_origins(Run(facts={}), reading, reading.job(job.shape), reading.plan, "launch.sh")
        text = "\n".join(line for file in made.files for line in file.text.splitlines() if line[:1] != "#")
        arguments = dict(ARGUMENTS[kind])
        if kind is LaunchKind.TORCHTITAN:
            one_pass = "local_batch_size" if reading.plan.dims.pp == 1 else "pipeline_parallel_microbatch_size"
            arguments["microbatch_size"] = one_pass
        in_text = {
            name
            for name, words in arguments.items()
            if facts.get(name) is not None and re.search(rf"(?<![\w-])({words})(?![\w-])", text)
        }
        expected = (in_text | {"framework", "num_devices"}) - no_effect(
            reading.plan, sets=bool(re.search("dp_shard_size|data_parallel_shard_degree", text))
        )
        assert {name for name in run if run.states(name)} ^ expected == set(), text
        assert set(run) == {name for name, value in facts.items() if value is not None}
        assert run.origin("dp") is Origin.IMPLIED
        assert all(fact.source for fact in run.facts.values())

    law()
    assert counted[True] > 1  # of all plans, few can be expressed


def origins(folder: Path, name: str, text: str, *, model: str | None = "llama-3.1-8b", **options: object) -> Run:
    (folder / name).write_text(text)
    return api.ask(model, cluster="dgx-h100", launch=folder / name, **options).run  # type: ignore[arg-type]


def of(run: Run, *names: str) -> list[str]:
    return [run.origin(name).value for name in names]


def test_a_variable_of_the_script_states_and_one_without_a_value_does_not(tmp_path: Path) -> None:
    text = "TP=4\ntorchrun --nproc-per-node 8 pretrain_gpt.py --bf16 --seq-length 4096 --tensor-model-parallel-size $TP"
    run = origins(tmp_path, "run.sh", f"{text} --num-layers 32 --attention-backend auto")
    assert of(run, "tp", "attention", "microbatch_size", "global_batch_size") == ["stated", "usual", "usual", "implied"]


def test_torchtitans_degrees_imply_the_devices(tmp_path: Path) -> None:
    toml = "[training]\nlocal_batch_size = 2\nseq_len = 4096\n[parallelism]\ndata_parallel_shard_degree = 8\n"
    run = origins(tmp_path, "run.toml", toml)
    names = ("num_devices", "dp", "global_batch_size", "microbatch_size", "tp", "recompute", "dtype")
    assert of(run, *names) == [*["implied"] * 3, "stated", *["usual"] * 3]
    assert run.facts["dp"].source == "data_parallel_replicate_degree x data_parallel_shard_degree"


def test_an_option_stays_an_option_and_the_rest_the_files(tmp_path: Path) -> None:
    toml = "[training]\nlocal_batch_size = 2\nseq_len = 4096\n[parallelism]\ndata_parallel_shard_degree = 8\n"
    run = origins(tmp_path, "run.toml", toml, tp=2, recompute="full")
    assert {run.facts[name].source for name in ("tp", "recompute")} == {"option"}
    assert run.facts["seq_len"].source == "run.toml"


def test_maxtexts_batch_per_device_implies_the_batch(tmp_path: Path) -> None:
    text = "python3 -m MaxText.train base.yml model_name=llama2-7b per_device_batch_size=2 ici_fsdp_parallelism={fsdp}"
    run = origins(tmp_path, "run.sh", f"{text.format(fsdp=8)} quantization=fp8", model=None, num_devices=8)
    names = ("microbatch_size", "zero_stage", "dtype", "global_batch_size", "tp", "seq_len")
    assert of(run, *names) == [*["stated"] * 3, "implied", *["usual"] * 2]
    split = origins(tmp_path, "run.sh", f"{text.format(fsdp=4)} ici_tensor_parallelism=2", model=None, num_devices=8)
    assert of(split, "tp", "microbatch_size") == ["stated", "implied"]


def test_a_nemo_recipe_states_what_its_model_section_has(tmp_path: Path) -> None:
    text = (
        "trainer: {devices: 8, num_nodes: 1, precision: bf16}\n"
        "model: {num_layers: 32, hidden_size: 4096, num_attention_heads: 32, encoder_seq_length: 4096,\n"
        "  micro_batch_size: 1, global_batch_size: 64, tensor_model_parallel_size: 2}\n"
    )
    run = origins(tmp_path, "nemo.yaml", text, model=None)
    assert of(run, "tp", "dtype", "num_devices", "pp", "zero_stage") == [*["stated"] * 3, *["usual"] * 2]
    assert run.facts["pp"].source == "NeMo's default"


def test_megatron_deepspeeds_own_arguments_state_too(tmp_path: Path) -> None:
    text = (
        "deepspeed --num_gpus 8 pretrain_gpt.py --deepspeed --zero-stage 1 --no-pipeline-parallel --fp16 "
        "--deepspeed-activation-checkpointing --checkpoint-activations --use-flash-attn --num-layers 32 "
        "--seq-length 2048"
    )
    run = origins(tmp_path, "run.sh", text)
    assert of(run, "zero_stage", "pp", "recompute", "attention", "tp") == [*["stated"] * 4, "usual"]
    assert run.facts["tp"].source == "Megatron-DeepSpeed's default"


def test_a_deepspeed_file_under_accelerate_states_its_own_fields(tmp_path: Path) -> None:
    text = "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\ndeepspeed_config: {zero_stage: 2}\n"
    run = origins(tmp_path, "acc.yaml", text, seq_len=4096, microbatch_size=1)
    assert of(run, "zero_stage", "dtype", "num_devices", "optimizer") == [*["stated"] * 3, "usual"]
    bare = text.replace("deepspeed_config: {zero_stage: 2}\n", "")
    assert of(origins(tmp_path, "acc.yaml", bare, seq_len=4096, microbatch_size=1), "zero_stage") == ["usual"]


def test_the_list_of_what_is_assumed_names_defaults_and_rules(tmp_path: Path) -> None:
    text = "torchrun --nproc-per-node 8 pretrain_gpt.py --bf16 --seq-length 4096 --num-layers 32 --micro-batch-size 2"
    (tmp_path / "run.sh").write_text(text)
    stated = {"launch": tmp_path / "run.sh", "cluster": "dgx-h100"}
    for notes in (
        api.ask("llama-3.1-8b", **stated).assumptions,  # type: ignore[arg-type]
        api.lint_launch(model="llama-3.1-8b", search=False, **stated).assumptions,  # type: ignore[arg-type]
    ):
        (usual,) = (note for note in notes if note.endswith("(usual: Megatron-LM's default)"))
        assert "recompute=none" in usual
        assert "microbatch_size" not in usual
        assert "context_parallel" not in usual
        assert "from the rest of the launch: global_batch_size=16 (microbatch_size x dp x num_microbatches)" in notes


def test_a_diagnosis_tells_the_origin_of_its_plan(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "torchrun --nproc-per-node 8 pretrain_gpt.py --bf16 --seq-length 4096 --num-layers 32 --global-batch-size 64"
    )
    log = tmp_path / "train.log"
    line = " iteration {0}/ 100 | consumed samples: {1} | elapsed time per iteration (ms): 9000.0 |"
    line += " global batch size: 64 |"
    log.write_text("\n".join(line.format(step, 64 * step) for step in range(1, 21)))
    stated = {"model": "llama-3.1-8b", "gpu": "h100", "best_plan": False}
    answer = api.diagnose(log, launch=tmp_path / "run.sh", **stated)  # type: ignore[arg-type]
    facts = answer.to_dict()["run"]
    assert facts["recompute"] == {"value": "none", "origin": "usual", "from": "Megatron-LM's default"}
    assert facts["seq_len"] == {"value": 4096, "origin": "stated", "from": "run.sh"}
    alone = api.diagnose(log, num_devices=8, seq_len=4096, **stated).to_dict()["run"]  # type: ignore[arg-type]
    assert alone["global_batch_size"] == {"value": 64, "origin": "stated", "from": "the log"}
    assert alone["seq_len"]["from"] == "option"
    assert (alone["tp"]["origin"], alone["dp"]["origin"]) == ("usual", "implied")
