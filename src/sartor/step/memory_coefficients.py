"""What drivers, libraries and allocators hold on a device whatever the trainer, each with its source.

What a trainer holds is in its record (``step.trainers``). Figures marked *recalled* are known from the software's
source or from seeing it run, not measured by this project.
"""

from __future__ import annotations

from collections.abc import Mapping

from sartor.model.training import Recipe, TrainingJob

TIGHT_FRAGMENTATION = 1.03
"""What is left of the gaps on a full device, whose allocator gives idle blocks back before it gives up (assumed)."""

CONTEXT_BYTES: Mapping[str, float] = {
    "volta": 0.6e9,
    "turing": 0.5e9,
    "ampere": 0.9e9,
    "ada": 0.6e9,
    "hopper": 1.1e9,
    "blackwell": 1.3e9,
}
"""CUDA context with the kernels of PyTorch, cuBLAS and cuDNN loaded, by generation (recalled: nvidia-smi over
``torch.cuda.memory_reserved`` of a fresh process that has run a matrix product, CUDA 11-12)."""

OTHER_CONTEXT_BYTES = 0.8e9
"""Of GPUs not listed (ROCm: recalled)."""
TPU_CONTEXT_BYTES = 0.3e9
"""Reserved by the TPU runtime (recalled)."""
COMMUNICATOR_BYTES = 0.3e9
"""NCCL's channels and buffers for one group of devices (recalled: 16-24 channels of 4-10 MiB per peer)."""
WORKSPACE_BYTES = {"hopper": 64e6, "blackwell": 64e6}
"""cuBLAS workspaces held in the allocator: 32 MiB for PyTorch and as much for Transformer Engine from Hopper on
(recalled)."""
OTHER_WORKSPACE_BYTES = 13e6
"""8.1 MiB of PyTorch's cuBLAS and 4 MiB of Transformer Engine's, before Hopper (recalled)."""


USABLE_SHARE = 0.99
"""Of a device's memory that processes can get (recalled: PyTorch reports 79.15 to 79.33 GiB in all on
A100 and H100 of 80 GiB)."""


def grad_bytes(job: TrainingJob) -> float:
    """Bytes of gradient per parameter, before sharding."""
    habits = job.trainer.memory
    if job.recipe in (Recipe.FP32, Recipe.TF32):
        return 4.0
    narrow = habits.bf16_grad_bytes if job.recipe is not Recipe.FP16 else 0.0
    return narrow or habits.grad_bytes or job.trainer.grad_dtype.bytes
