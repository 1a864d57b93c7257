deepspeed --num_gpus 8 main.py --data_split 2,4,4 --actor_model_name_or_path a --critic_model_name_or_path b \
   --per_device_train_batch_size 2 --zero_stage 2 --num_padding_at_beginning 1
