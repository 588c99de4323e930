"""Per-token rewards: the environment, KL shaping, score functions, reward models."""
