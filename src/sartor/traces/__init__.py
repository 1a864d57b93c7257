"""What a run left behind: profiler traces and training logs."""
