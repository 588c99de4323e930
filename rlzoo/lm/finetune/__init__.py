"""SFT, reward-model training, the pretraining loss, and their data."""
