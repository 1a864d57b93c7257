python3 -m maxtext.train src/maxtext/configs/base.yml model_name=qwen3-8b ici_fsdp_parallelism=16 per_device_batch_size=4 \
  max_target_length=4096 remat_policy=full optimizer_memory_host_offload=True
