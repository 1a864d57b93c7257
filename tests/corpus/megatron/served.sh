# Serving, beside the scripts that train.
VLLM_LOGGING_LEVEL=INFO vllm serve /models/chat-7b \
    --tensor-parallel-size 2 --max-model-len 16384 --kv-cache-dtype fp8
