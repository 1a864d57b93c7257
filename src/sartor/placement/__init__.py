"""Device placement: which layers form which stage, how many replicas run, how wide layers are split."""
