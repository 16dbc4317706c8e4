"""Sweep: the runs of an experiment one after the other, here or on Slurm."""
