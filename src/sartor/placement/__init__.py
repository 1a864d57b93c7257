"""Device placement: which layers form which stage, how many copies of the pipeline run, how wide layers are split."""
