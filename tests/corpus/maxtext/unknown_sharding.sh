python3 -m MaxText.train MaxText/configs/base.yml model_name=llama3.1-8b ici_fsdp_parallelism=8 ici_sideways_parallelism=2 \
  per_device_batch_size=2 max_target_length=8192
