accelerate launch --config_file shards.yaml tune.py --seed 7
