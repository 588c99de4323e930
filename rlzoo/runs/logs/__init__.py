"""What a run tells: metrics, TensorBoard, trackers, and the terminal."""
