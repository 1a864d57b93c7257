processes=4
# CUDA_VISIBLE_DEVICES=0,1,2,3 \
NPROC_PER_NODE=$processes \
swift sft \
    --model Qwen/Qwen3-8B \
    --train_type lora \
    --lora_rank 16 \
    --dataset own \
    --torch_dtype bfloat16 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps $(expr 16 / $processes) \
    --max_length 2048
