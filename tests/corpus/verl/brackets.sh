gpus=4
batch=$[$gpus * 16]
torchrun --standalone --nnodes=1 --nproc_per_node=$gpus \
    -m verl.trainer.fsdp_sft_trainer \
    data.train_files=own.parquet \
    data.train_batch_size=$batch \
    data.micro_batch_size_per_gpu=4 \
    data.max_length=4096 \
    model.partial_pretrain=Qwen/Qwen3-8B
