from megatron.bridge import AutoBridge
from megatron.bridge.training.config import ConfigContainer, TrainingConfig
from megatron.bridge.training.pretrain import pretrain

provider = AutoBridge.from_hf_pretrained("Qwen/Qwen3-8B").to_megatron_provider(load_weights=False)
provider.tensor_model_parallel_size = 2
provider.pipeline_model_parallel_size = 1
provider.sequence_parallel = True
provider.recompute_granularity = "full"
provider.seq_length = 4096
cfg = ConfigContainer(
    model=provider,
    train=TrainingConfig(micro_batch_size=1, global_batch_size=64, train_iters=10),
    mixed_precision="bf16_with_mxfp8_mixed",
)
pretrain(config=cfg)
