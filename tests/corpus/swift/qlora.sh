CUDA_VISIBLE_DEVICES=0 swift sft --model Qwen/Qwen2.5-7B --train_type lora \
  --quant_method bnb --quant_bits 4 --bnb_4bit_compute_dtype bfloat16 \
  --max_length 1024 --per_device_train_batch_size 4 --gradient_accumulation_steps 1 --gradient_checkpointing false
