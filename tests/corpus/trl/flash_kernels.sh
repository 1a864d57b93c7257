accelerate launch --num_processes 4 --multi_gpu --mixed_precision bf16 trl/scripts/sft.py \
    --model_name_or_path openai/gpt-oss-20b --attn_implementation kernels-community/vllm-flash-attn3 --dtype bfloat16 --bf16 \
    --dataset_name HuggingFaceH4/Multilingual-Thinking --gradient_checkpointing --per_device_train_batch_size 2 \
    --max_length 2048 --use_peft --lora_r 8 --lora_target_modules all-linear --output_dir out
