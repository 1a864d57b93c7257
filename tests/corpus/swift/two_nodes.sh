CUDA_VISIBLE_DEVICES=0,1,2,3 NNODES=2 NODE_RANK=0 MASTER_ADDR=127.0.0.1 NPROC_PER_NODE=4 \
swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type lora --max_length 4096 --deepspeed zero2 \
  --sequence_parallel_size 4
