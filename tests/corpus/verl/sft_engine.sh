backend=${BACKEND:-megatron}
ENGINE="engine=${backend} optim=${backend} engine.tensor_model_parallel_size=2 \
    engine.pipeline_model_parallel_size=2 engine.context_parallel_size=1"
torchrun --standalone --nnodes=1 --nproc_per_node=${NUM_GPUS:-8} -m verl.trainer.sft_trainer \
    data.train_batch_size=64 data.micro_batch_size_per_gpu=2 data.max_length=4096 \
    model.path=$HOME/models/Qwen/Qwen3-8B ${ENGINE}
