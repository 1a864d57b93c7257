nemo llm finetune --factory llama3_8b trainer.num_nodes=1 trainer.devices=8 trainer.strategy.tensor_model_parallel_size=1 \
  trainer.strategy.pipeline_model_parallel_size=1 data.micro_batch_size=1 data.global_batch_size=128 data.seq_length=2048 peft.dim=16
