python3 MaxText/train.py MaxText/configs/base.yml run_name=v5 dcn_data_parallelism=1 ici_fsdp_parallelism=256 per_device_batch_size=2 remat_policy=full scale=3
