# A program of one's own, which trains adapters of a rank.
torchrun --nproc_per_node 8 -m train --model_name_or_path Qwen/Qwen3-8B --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 4 --bf16 --block_size 8192 --gradient_checkpointing true --rank 128
