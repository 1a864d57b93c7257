nproc=4
torchrun --standalone --nnodes=1 --nproc_per_node=$nproc -m verl.trainer.fsdp_sft_trainer \
  data.train_batch_size=32 data.micro_batch_size_per_gpu=1 data.max_length=16384 ulysses_sequence_parallel_size=2 use_remove_padding=true \
  model.partial_pretrain=Qwen/Qwen2.5-7B-Instruct model.lora_rank=32 model.target_modules=all-linear
