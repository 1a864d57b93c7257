nemo llm pretrain --factory llama3_70b trainer.num_nodes=8 trainer.devices=8 trainer.strategy.tensor_model_parallel_size=4 \
  trainer.strategy.pipeline_model_parallel_size=4 trainer.strategy.virtual_pipeline_model_parallel_size=5 trainer.strategy.sequence_parallel=true \
  data.micro_batch_size=1 data.global_batch_size=128 data.seq_length=8192
