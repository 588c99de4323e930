"""Supervised fine-tuning and reward-model training."""
