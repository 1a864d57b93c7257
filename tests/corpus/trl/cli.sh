accelerate launch --num_processes 4 -m trl.scripts.sft --model_name_or_path Qwen/Qwen2.5-7B --max_length 1024 \
  --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --bf16 --gradient_checkpointing --use_peft --lora_r 16
