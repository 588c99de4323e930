"""Runs: configuration, the training loop, run directories, evaluation."""
