NNODES=2 NPROC_PER_NODE=8 NODE_RANK=0 llamafactory-cli train \
    --stage sft --do_train True \
    --model_name_or_path Qwen/Qwen2.5-7B-Instruct \
    --finetuning_type full --deepspeed ds_z2_config.json \
    --template qwen --dataset notes --cutoff_len 8192 \
    --per_device_train_batch_size 1 --gradient_accumulation_steps 4 \
    --disable_gradient_checkpointing False --enable_liger_kernel True \
    --bf16 True --output_dir out
