# Long conversations, a sequence over all devices of a node.
torchrun --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer \
    data.max_length=32768 data.train_batch_size=64 data.micro_batch_size_per_gpu=2 \
    data.train_files=$HOME/data/train.parquet data.multiturn.enable=true \
    model.partial_pretrain=$HOME/models/Qwen/Qwen2.5-14B-Instruct model.fsdp_config.cpu_offload=true \
    model.fsdp_config.offload_params=true optim.lr=1e-6 trainer.default_hdfs_dir=null $@ \
    ulysses_sequence_parallel_size=4 use_remove_padding=true
