python scripts/performance/setup_experiment.py --gpu gb200 --model_family_name deepseek --model_recipe_name deepseek_v3 --num_gpus 256
