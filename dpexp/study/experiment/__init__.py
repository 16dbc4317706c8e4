"""Experiment: a folder that asks a question: its cells, claims, figure and README."""
