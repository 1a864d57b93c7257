EP=${EP:-8}
ENGINE="engine=megatron engine.tensor_model_parallel_size=2 engine.pipeline_model_parallel_size=2 \
  engine.expert_model_parallel_size=${EP} engine.expert_tensor_parallel_size=1 engine.use_distributed_optimizer=False \
  engine.dtype=bfloat16 +engine.override_transformer_config.recompute_granularity=full"
torchrun --nproc_per_node=8 --nnodes=2 -m verl.trainer.sft_trainer data.train_batch_size=16 data.micro_batch_size_per_gpu=1 \
  data.max_length=2048 data.use_dynamic_bsz=False model.path=Qwen/Qwen3-30B-A3B model.enable_gradient_checkpointing=True ${ENGINE}
