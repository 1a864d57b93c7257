"""Files that start serving engines are read as what was priced, and what would not start is said."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sartor import api
from sartor.cli import run as sartor_command
from sartor.errors import InputError
from sartor.launch.serving import read_servers, serving_files

QUICK = {"input_len": 512, "output_len": 128}


@pytest.mark.parametrize(
    ("model", "gpu", "words"),
    [
        ("qwen3-8b", "h100", {"kernels": "vllm", "dtype": "fp8"}),
        ("qwen3-8b", "l4", {"kernels": "sglang", "kv_dtype": "fp8", "pools": False}),
        ("qwen3-8b", "t4", {"kernels": "vllm", "pools": False}),
        ("mixtral-8x7b", "h200", {"kernels": "trtllm", "dtype": "fp8", "utilization": 0.8, "fix": {"copies": 4}}),
        ("mixtral-8x7b", "h100", {"kernels": "sglang", "fix": {"prefill_workers": 1, "copies": 2, "tp": 2, "ep": 4}}),
        ("mixtral-8x7b", "h100", {"kernels": "vllm", "fix": {"prefill_tp": 4, "prefill_ep": 4, "prefill_workers": 1}}),
    ],
)
def test_files_of_a_deployment_are_read_as_what_was_priced(
    tmp_path: Path, model: str, gpu: str, words: dict[str, object]
) -> None:
    best = api.deploy(model, gpu, users=40, most_devices=16, **QUICK, **words).best
    assert best is not None
    files = serving_files(best.deployment, model, 640)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    manifests = [tmp_path / name for name in files if name in ("kubernetes.yaml", "llm-d-values.yaml")]
    for path in (tmp_path, *manifests):
        stated = {} if path == tmp_path else {"gpu": gpu, "dtype": best.deployment.layout.server.dtype.value}
        answer = api.serving(model, launch=path, concurrency=best.deployment.in_flight, **QUICK, **stated)
        layout = best.deployment.layout
        pools = (layout.server, layout.prefill)
        for pool, read in zip(pools, (answer.server, answer.prefill), strict=True):
            if pool is not None:
                assert read is not None
                names = ("tp", "copies", "ep", "dtype", "cache", "gpu")
                assert [getattr(read, name) for name in names] == [getattr(pool, name) for name in names]
        assert (answer.prefill_workers, answer.decode_workers) == (layout.prefill_workers, layout.decode_workers)
        for name in ("ttft_s", "tpot_s"):
            assert np.ravel(getattr(answer.steady, name))[0] == getattr(best, name)
        assert not answer.findings


VLLM = "vllm serve Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "run.sh",
            f"{VLLM} -tp 2 --mem-fraction-static 0.8",
            "error: .*is an option of sglang; vllm has --gpu-memory-ut",
        ),
        ("run.sh", f"{VLLM} -dp 2", "info: a model without experts has 2 whole servers"),
        (
            "run.sh",
            f"{VLLM} --tp_size 2 --kv-cache-dtype fp8",
            "error: --tp-size is an option of sglang; vllm has --ten",
        ),
        ("run.sh", f"{VLLM} --num-scheduler-steps 8", "warn: .* no option of vllm since 0.10.1"),
        ("run.sh", f"{VLLM} --cpu-offload-gb 8", "warn: .*may change memory"),
        ("run.sh", f"{VLLM} --enforce-eager", "warn: .*without graphs"),
        ("run.sh", f"{VLLM} --frobnicate 8", "info: --frobnicate is not read"),
        ("run.sh", f"{VLLM} --max-num-seqs 900 --max-num-batched-tokens 512", "error: vllm refuses 900 sequences"),
        ("run.sh", "python -m sglang.launch_server --model-path qwen3-8b --enable-ep-moe", "since 0.5: --ep-size"),
        (
            "Dockerfile",
            'FROM vllm/vllm-openai:v0.10.1\nCMD ["--model", "Qwen/Qwen3-8B", "--bogus-cache=3"]',
            "bogus-cache",
        ),
        (
            "pod.yaml",
            "spec:\n  containers:\n  - image: lmsysorg/sglang:v0.5.4\n    args: [--model, Qwen/Qwen3-8B, --tp, '2']"
            "\n    resources: {limits: {nvidia.com/gpu: 4}}\n",
            "error: asks for 4 GPUs and starts an engine on 2",
        ),
        (
            "compose.yml",
            "services:\n  a:\n    image: vllm/vllm-openai:v0.11.0\n    command: --model Qwen/Qwen3-8B"
            " --max-model-len 40k --tensor-parallel-size 16\n",
            "error: 16 GPUs are more than the 8 of a node",
        ),
    ],
)
def test_what_would_not_start_or_is_not_priced_is_said(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    answer = api.serving(None, "h100", launch=tmp_path / name, concurrency=4)
    said = [f"{grade}: {message}" for grade, _, message in answer.findings]
    assert any(re.search(words, line) for line in said), said


def test_a_context_that_the_cache_does_not_hold_is_an_error_that_names_one_that_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.sh").write_text("vllm serve llama-3.1-8b --max-model-len 131072")
    assert sartor_command(["serving", "--launch", str(tmp_path / "run.sh"), "--gpu", "l4", "--concurrency", "2"]) == 1
    first = " ".join(capsys.readouterr().out.split())
    assert first.startswith("Does not start as the file has it: the cache holds ")
    fits = first.partition("--max-model-len ")[2].partition(".")[0]
    (tmp_path / "run.sh").write_text(f"vllm serve llama-3.1-8b --max-model-len {fits}")
    assert not api.serving(None, "l4", launch=tmp_path / "run.sh", concurrency=2).findings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "vllm serve qwen3-8b --tensor-parallel-size $TP",
            "tensor-parallel-size.*a variable that the file does not set",
        ),
        ("vllm serve qwen3-8b --tensor-parallel-size two", "tp=two: must be a number above 0"),
        ("vllm serve qwen3-8b --tensor-parallel-size 3", "tp=3: does not split num_heads"),
        ("vllm serve --tensor-parallel-size 2", "does not name it"),
        ("vllm serve qwen3-8b --max-model-len 1000", "output_len=1024.*more than the 1000 tokens"),
        ("trtllm-serve qwen3-8b --config gone.yaml", "must lie beside"),
        ("echo hello", "starts no server"),
        ("vllm serve qwen3-8b\nvllm serve qwen3-8b -tp 2", "all of a kind alike"),
    ],
)
def test_a_file_that_leaves_the_server_open_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "run.sh").write_text(text)
    with pytest.raises(InputError, match=words):
        api.serving(None, "h100", launch=tmp_path / "run.sh")


def test_tensorrt_llm_s_configuration_is_read_beside_its_command_and_alone(tmp_path: Path) -> None:
    lines = (
        "enable_attention_dp: true\nmax_batch_size: 64\nkv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0.8}\n"
    )
    (tmp_path / "extra.yaml").write_text(lines + "tensor_parallel_size: 4\n")
    (tmp_path / "run.sh").write_text("trtllm-serve MODEL --tp_size 4 --extra_llm_api_options extra.yaml")
    for name in ("extra.yaml", "run.sh"):
        (started,) = read_servers(tmp_path / name)
        stated = started.stated()
        expected = {"tp": 1, "copies": 4, "max_num_seqs": 64, "kv_dtype": "fp8", "utilization": 0.8}
        assert expected.items() <= stated.items()


def test_training_commands_name_the_one_that_reads_a_server_s_file(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"docker run vllm/vllm-openai:v0.11.0 --model x --port 8000\n{VLLM}")
    with pytest.raises(InputError, match="sartor serving --launch"):
        api.lint(None, "h100", launch=tmp_path / "run.sh")
