accelerate launch --config_file fsdp2.yaml train.py --model_name_or_path meta-llama/Llama-3.1-8B --max_length 4096 \
  --per_device_train_batch_size 1 --gradient_accumulation_steps 2 --bf16
