nproc_per_node=8
NPROC_PER_NODE=$nproc_per_node \
swift sft --model Qwen/Qwen3-8B --tuner_type full --dataset chats.jsonl \
    --torch_dtype bfloat16 --per_device_train_batch_size 2 \
    --gradient_accumulation_steps $((32 / nproc_per_node)) \
    --packing true --max_length 8192 --attn_impl flash_attn \
    --use_liger_kernel true --deepspeed zero3
