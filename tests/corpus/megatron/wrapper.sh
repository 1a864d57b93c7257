export VARIANT=${1:-baseline}
exec bash "$(dirname $0)/train_gpt_smoke.sh" "$CHECKPOINTS" "$DATA"
