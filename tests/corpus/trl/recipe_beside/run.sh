ACCELERATE_LOG_LEVEL=info accelerate launch --config_file fsdp.yaml --num_processes 8 sft.py sft_config.yaml
