# Without sharding.
CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE=4 swift sft --model /data/models/Qwen3-8B --train_type full \
    --dataset own.jsonl --torch_dtype bfloat16 --attn_impl flash_attn --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 4 --max_length 4096 --gradient_checkpointing_kwargs '{"use_reentrant": false}'
