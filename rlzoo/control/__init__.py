"""Control environments: Gymnasium's, and the vectorised classic control."""
