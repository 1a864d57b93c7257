python llm_sft.py --model_id_or_path Qwen/Qwen2.5-7B --sft_type full --dtype bf16 --max_length 2048 \
  --batch_size 1 --gradient_accumulation_steps 8 --use_flash_attn true --deepspeed default-zero3
