"""Experiments: what a claim says, the runs that test it, and a report of what came."""
