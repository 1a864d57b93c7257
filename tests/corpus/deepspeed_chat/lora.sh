deepspeed --num_nodes 2 --num_gpus=8 main.py --data_split 2,4,4 --model_name_or_path meta-llama/Llama-2-13b-hf \
   --per_device_train_batch_size 2 --max_seq_len 512 --lora_dim 64 --dtype bf16 --zero_stage 2 --deepspeed
