"""Control environments: vectorised classic control, and any Gymnasium environment."""
