"""Language tasks, one file each."""
