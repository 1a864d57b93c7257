from trl import DPOConfig, DPOTrainer

DPOTrainer(
    model="Qwen/Qwen3-8B", args=DPOConfig(per_device_train_batch_size=2, output_dir="out"), train_dataset=pairs
).train()
