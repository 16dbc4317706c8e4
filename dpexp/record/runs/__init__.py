"""Runs: the folder of all runs: find one, import those of other machines, check them."""
