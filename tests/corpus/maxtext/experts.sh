python3 -m MaxText.train MaxText/configs/base.yml model_name=mixtral-8x7b ici_fsdp_parallelism=4 ici_expert_parallelism=4 \
  per_device_batch_size=1 max_target_length=4096 remat_policy=full
