"""What only makes optimisation faster."""
