torchrun --standalone --nnodes=1 --nproc_per_node=8 -m verl.trainer.fsdp_sft_trainer \
  data.train_files=a.parquet data.train_batch_size=64 data.micro_batch_size_per_gpu=4 data.max_length=2048 \
  model.partial_pretrain=Qwen/Qwen2.5-0.5B model.enable_gradient_checkpointing=True optim.lr=1e-5
