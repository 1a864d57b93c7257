# The command is handed to a scheduler as one word.
ARGS="\
model_name=llama3.1-70b \
per_device_batch_size=2 \
max_target_length=8192 \
ici_fsdp_parallelism=-1 \
remat_policy=full \
run_name=${NAME}"
xpk workload create --cluster own --tpu-type v5p-128 --num-slices 1 --workload trial \
    --command "set -e && export JAX_PLATFORMS=tpu && python3 -u -m maxtext.trainers.pre_train.train \
maxtext/configs/base.yml ${ARGS} | tee train.log"
