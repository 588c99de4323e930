"""The records of a run: metrics, TensorBoard, trackers, and the terminal."""
