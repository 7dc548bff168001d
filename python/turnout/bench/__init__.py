"""Benchmarks that print a bound, measured in the same run, beside every figure."""
