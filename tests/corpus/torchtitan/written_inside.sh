docker run --rm --gpus all -v $PWD:/w -w /w own/image:1 bash -lc "
cat > /tmp/train.toml <<'TOML'
[model]
name = \"llama3\"
flavor = \"8B\"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = \"full\"
TOML
torchrun --nproc_per_node=8 -m torchtitan.train --job.config_file /tmp/train.toml
"
