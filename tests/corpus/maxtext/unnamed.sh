python3 -m MaxText.train MaxText/configs/base.yml model_name=house-9b ici_fsdp_parallelism=8 per_device_batch_size=1 max_target_length=2048
