"""Recipes of Megatron Bridge: written with fields that its wheels have, read back as the plan and model they were."""

from __future__ import annotations

import ast
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from launch.package_index import fetched
from launch.test_own_loaders import judged
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import load_cluster
from sartor.launch.files import launch_files, read_launch, save_files
from sartor.model.training import Recipe, Recompute, RecomputeModule, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims
from sartor.model.zoo import load_model
from sartor.operators import DType
from sartor.plans.space import broken
from sartor.run.fields import Run
from sartor.step.question import training_job, within_files
from sartor.step.step import step

CLUSTER = load_cluster("dgx-h100")
MODELS = (
    "llama-3-8b", "llama-3.1-70b", "qwen3-8b", "qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3", "gpt3-175b",
    "gpt-oss-20b",
)  # fmt: skip
SHAPED = TrainingPlan(
    dims=ParallelDims(tp=2, pp=2, dp=16, cp=1), num_microbatches=4, zero_stage=1, recompute=Recompute.FULL
)


def job_of(model: str, **changes: object) -> TrainingJob:
    made, _ = training_job(
        load_model(model), CLUSTER.gpus, global_batch_size=64, seq_len=2048, framework="megatron-bridge"
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def case(model: str) -> tuple[TrainingJob, TrainingPlan]:
    job = job_of(model)
    return job, replace(SHAPED, dims=replace(SHAPED.dims, ep=4)) if job.shape.moe_ffn else SHAPED


@pytest.mark.parametrize("model", MODELS)
def test_a_recipe_is_read_back_as_the_model_and_plan_it_was_written_for(model: str, tmp_path: Path) -> None:
    job, plan = case(model)
    save_files(launch_files("megatron-bridge", job, plan, CLUSTER), tmp_path)
    save_files(launch_files("megatron", job, plan, CLUSTER), tmp_path / "script")
    script = read_launch(tmp_path / "script")
    for file in (tmp_path, tmp_path / "sartor_recipe.py"):
        reading = read_launch(file, num_devices=64)
        back = reading.job()
        assert not (*reading.unknown, *reading.unpriced)
        assert script.shape
        assert back.shape == replace(script.shape, max_positions=2048)  # a recipe has those of its sequences alone
        assert float(step(back, reading.plan, CLUSTER).step_s) == float(step(job, plan, CLUSTER).step_s)


CASES = {
    "fp8": {"recipe": Recipe.FP8_CURRENT},
    "mxfp8": {"recipe": Recipe.MXFP8},
    "moments": {"moments_dtype": DType.BF16},
    "modules": {"recompute_modules": frozenset({RecomputeModule.LAYERNORM, RecomputeModule.MLP})},
}


@pytest.mark.parametrize("name", CASES)
def test_what_a_job_switches_is_in_the_recipe(name: str, tmp_path: Path) -> None:
    job, plan = job_of("llama-3-8b", **CASES[name]), replace(SHAPED, recompute=Recompute.SELECTIVE)
    save_files(launch_files("megatron-bridge", job, plan, CLUSTER), tmp_path)
    back = read_launch(tmp_path).job()
    assert {field: getattr(back, field) for field in CASES[name]} == CASES[name]


def test_8_bit_inputs_of_activation_functions_are_a_field_of_the_recipe_alone(tmp_path: Path) -> None:
    job, plan = job_of("llama-3-8b"), SHAPED
    job = replace(job, trainer=replace(job.trainer, memory=replace(job.trainer.memory, narrow_act=True)))
    files = launch_files("megatron-bridge", job, plan, CLUSTER)
    assert "activation_func_fp8_input_store=True" in files.files[0].text
    save_files(files, tmp_path)
    assert read_launch(tmp_path).parts.trainer.memory.narrow_act
    in_arguments, in_recipes = (broken(within_files(job, name), plan) for name in ("megatron", "megatron-bridge"))
    assert any(reason.startswith("fp8_act_store=on: ") for reason in in_arguments)
    assert not any(reason.startswith("fp8_act_store=on: ") for reason in in_recipes)


def test_a_recipe_of_ones_own_keeps_what_megatron_bridge_has_on_without_asking(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from megatron.bridge.models.gpt_provider import GPTModelProvider\n"
        "def mine():\n    cfg = _pretrain_common()\n"
        "    cfg.model = GPTModelProvider(num_layers=32, hidden_size=4096, num_attention_heads=32,\n"
        "        ffn_hidden_size=16384, seq_length=2048, vocab_size=32000)\n"
        "    cfg.model.tensor_model_parallel_size = 2\n    cfg.train.global_batch_size = 32\n"
        "    cfg.mixed_precision = 'bf16_with_mxfp8_mixed'\n    return cfg\n"
    )
    reading = read_launch(tmp_path / "mine.py", num_devices=8)
    assert (int(reading.plan.dims.tp), int(reading.plan.dims.dp), reading.plan.zero_stage) == (2, 4, 1)
    assert reading.parts.recipe is Recipe.MXFP8
    assert reading.parts.trainer.memory.narrow_primary
    text = (tmp_path / "mine.py").read_text()
    wide = text.replace("    return", "    cfg.mixed_precision.fp8_param_gather = False\n    return")
    (tmp_path / "wide.py").write_text(wide)
    assert not read_launch(tmp_path / "wide.py", num_devices=8).parts.trainer.memory.narrow_primary
    with pytest.raises(InputError, match="num_devices"):
        read_launch(tmp_path / "mine.py")


def test_learned_positions_other_than_the_sequences_are_refused() -> None:
    job = replace(job_of("gpt3-175b"), seq_len=1024)
    with pytest.raises(InputError, match="learns as many positions as a sequence has tokens; the model has 2048"):
        launch_files("megatron-bridge", job, SHAPED, CLUSTER)


def test_yarn_without_latent_attention_has_the_fields_that_megatron_core_reads() -> None:
    text = launch_files("megatron-bridge", job_of("gpt-oss-20b"), SHAPED, CLUSTER).files[0].text
    assert "config.model.yarn_beta_fast = 32" in text
    assert "config.model.yarn_correction_range_round_to_int = False" in text
    assert "attention_backend=AttnBackend.fused" in text


def test_megatron_fsdp_has_what_it_requires(tmp_path: Path) -> None:
    files = launch_files("megatron-bridge", job_of("llama-3-8b"), replace(SHAPED, zero_stage=3), CLUSTER)
    text = files.files[0].text
    assert "config.optimizer.use_distributed_optimizer = True" in text
    assert "gradient_accumulation_fusion=False" in text
    assert "unset CUDA_DEVICE_MAX_CONNECTIONS" in files.files[1].text
    save_files(files, tmp_path)
    assert read_launch(tmp_path).plan.zero_stage == 3


# -- the wheels ---------------------------------------------------------------------------------------------------


def fields_of(folder: Path, file: str, name: str) -> set[str]:
    tree = ast.parse((folder / file).read_text())
    found = next(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name)
    return {n.target.id for n in found.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}


@pytest.mark.slow
def test_every_field_of_a_recipe_is_one_of_the_wheels_dataclasses(tmp_path: Path) -> None:
    """Megatron Bridge imports Transformer Engine and CUDA, so that its classes are read, not run."""
    for wheel in ("megatron-bridge==0.3.1", "megatron-core==0.16.1"):
        fetched(tmp_path, wheel, verb="download")
    for path in tmp_path.glob("*.whl"):
        zipfile.ZipFile(path).extractall(tmp_path)
    core, bridge = "megatron/core/", "megatron/bridge/"
    known = {
        "model": fields_of(tmp_path, core + "transformer/transformer_config.py", "TransformerConfig")
        | fields_of(tmp_path, core + "transformer/transformer_config.py", "MLATransformerConfig")
        | fields_of(tmp_path, core + "model_parallel_config.py", "ModelParallelConfig")
        | fields_of(tmp_path, bridge + "models/gpt_provider.py", "GPTModelProvider")
        | fields_of(tmp_path, bridge + "models/gpt_oss/gpt_oss_provider.py", "GPTOSSProvider"),
        "ddp": fields_of(
            tmp_path, core + "distributed/distributed_data_parallel_config.py", "DistributedDataParallelConfig"
        ),
        "optimizer": fields_of(tmp_path, core + "optimizer/optimizer_config.py", "OptimizerConfig"),
        "train": fields_of(tmp_path, bridge + "training/config.py", "TrainingConfig"),
        "checkpoint": fields_of(tmp_path, bridge + "training/config.py", "CheckpointConfig"),
        "dist": fields_of(tmp_path, bridge + "training/config.py", "DistributedInitConfig"),
        "mixed_precision": fields_of(tmp_path, bridge + "training/mixed_precision.py", "MixedPrecisionConfig"),
        "dataset": {"seq_length"},
    }
    for model in MODELS:
        job, plan = case(model)
        text = launch_files("megatron-bridge", job, plan, CLUSTER).files[0].text
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.keywords:
                names = {k.arg for k in node.value.keywords}
                assert names <= known["model"] | {"tp_comm_overlap"}, model
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).count(".") == 2:
                _, section, field = ast.unparse(node.targets[0]).split(".")
                assert field in known[section], (model, section, field)


CORE = """
import ast, pathlib, types, warnings
import torch_shells
warnings.simplefilter("ignore")
torch_shells.NAMES -= {"numpy"}
torch_shells.NAMES |= {"transformer_engine", "apex"}
root = pathlib.Path(FOLDER, "site")
inner = ("", ".core", ".core.transformer", ".core.quantization", ".core.fusions", ".core.pipeline_parallel")
for name in ("megatron" + each for each in inner):
    module = types.ModuleType(name)
    module.__path__ = [str(root.joinpath(*name.split(".")))]
    sys.modules[name] = module
utils = sys.modules["megatron.core.utils"] = torch_shells.Package("megatron.core.utils")
for name in ("is_te_min_version", "is_torch_min_version", "is_flashinfer_min_version"):
    setattr(utils, name, lambda *_, **__: True)
import torch
import torch.nn.functional as F
from megatron.core.transformer.enums import AttnBackend
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
known = {"torch": torch, "F": F, "AttnBackend": AttnBackend, "quick_gelu": F.quick_gelu, "squared_relu": F.squared_relu}
for name in NAMES:
    tree = ast.parse(pathlib.Path(FOLDER, name, "sartor_recipe.py").read_text())
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.keywords)
    call = next(node for node in calls if "Provider" in ast.unparse(node.func))
    given = {k.arg: eval(ast.unparse(k.value), known) for k in call.keywords}
    kind = MLATransformerConfig if "multi_latent_attention" in given else TransformerConfig
    given = {field: value for field, value in given.items() if field in kind.__dataclass_fields__}
    made = kind(**given, bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16)
    print(name, made.num_layers, made.tensor_model_parallel_size, made.expert_model_parallel_size, sep="|")
"""
OTHER_PLANS = {
    "shaped": {},
    "contexts": {"dims": ParallelDims(tp=4, cp=2, dp=8), "recompute": Recompute.NONE},
    "chunks": {"dims": ParallelDims(tp=2, pp=4, dp=8), "num_microbatches": 8, "recompute": Recompute.SELECTIVE},
}


@pytest.mark.slow
def test_megatron_cores_own_configuration_takes_28_launches(tmp_path: Path) -> None:
    """Its checks of one another's fields run (``TransformerConfig.__post_init__``), which are Megatron-LM's too."""
    fetched(tmp_path / "site", "megatron-core==0.16.1")
    made = {f"{model} {name}": case(model)[0] for model in MODELS for name in OTHER_PLANS}
    made |= {f"llama-3-8b {name} shaped": job_of("llama-3-8b", **changes) for name, changes in CASES.items()}
    for name, job in made.items():
        plan = replace(SHAPED, **OTHER_PLANS[name.rpartition(" ")[2]])  # type: ignore[arg-type]
        if name.startswith("llama-3-8b modules"):
            plan = replace(plan, recompute=Recompute.SELECTIVE)
        plan = replace(plan, dims=replace(plan.dims, ep=4 if job.shape.moe_ffn else 1))
        whole = replace(job, global_batch_size=int(plan.dims.dp) * int(plan.num_microbatches))
        save_files(launch_files("megatron-bridge", whole, plan, CLUSTER), tmp_path / name)
    lines = judged(CORE, tmp_path, list(made)).splitlines()
    assert [line.split("|")[0] for line in lines] == list(made)
    assert len(lines) == 28
    assert "deepseek-v3 chunks|61|2|4" in lines


def test_short_options_of_the_performance_scripts_are_read(tmp_path: Path) -> None:
    words = "--num_gpus 64 --gpu h100 -c bf16 -tp 4 -pp 4 -cp 2 -vp 5 -mb 1 -gb 128"
    (tmp_path / "a.sh").write_text(f"python scripts/performance/run_script.py -m llama3 -s 70b {words}\n")
    reading = read_launch(tmp_path / "a.sh", shape=load_model("llama-3-70b"), run=Run.stated(seq_len=8192))
    plan = reading.plan
    assert (plan.dims.tp, plan.dims.pp, plan.dims.cp, plan.dims.dp) == (4, 4, 2, 2)
    assert (plan.virtual_stages, plan.microbatch_size, plan.num_microbatches) == (5, 1, 64)
    assert (*reading.unknown, *reading.unpriced) == ("$recipe that it overrides",)
