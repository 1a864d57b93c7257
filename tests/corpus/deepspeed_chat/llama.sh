ZERO=$2
if [ "$ZERO" == "" ]; then
    ZERO=3
fi
deepspeed --num_gpus=8 main.py \
   --data_path some/preferences \
   --data_split 2,4,4 \
   --model_name_or_path meta-llama/Llama-2-7b-hf \
   --per_device_train_batch_size 4 \
   --max_seq_len 1024 \
   --gradient_accumulation_steps 2 \
   --gradient_checkpointing \
   --offload \
   --zero_stage $ZERO \
   --deepspeed
