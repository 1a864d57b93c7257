import os
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

batch = int(os.environ.get("BATCH", 4))
SFTTrainer(
    "Qwen/Qwen3-8B",
    train_dataset=data,
    peft_config=LoraConfig(r=32, target_modules="all-linear"),
    args=SFTConfig(
        per_device_train_batch_size=batch, max_length=4096, packing=True, bf16=True, gradient_checkpointing=True
    ),
).train()
