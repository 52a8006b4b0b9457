"""Benchmarks: runnable programs that report ratios to raw baselines measured in the same run."""
