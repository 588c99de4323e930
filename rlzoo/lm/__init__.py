"""Language models: text generation as an environment, models, fine-tuning and tasks."""
