"""Rewards of tokens: the environment, KL shaping, score functions."""
