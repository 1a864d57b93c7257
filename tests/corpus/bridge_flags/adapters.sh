# A recipe of adapters, whose rank the command does not say.
torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe llama3_8b_peft_config \
    train.global_batch_size=32 train.micro_batch_size=1 model.tensor_model_parallel_size=1 \
    model.pipeline_model_parallel_size=1 model.seq_length=4096
