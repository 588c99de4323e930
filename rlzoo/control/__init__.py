"""Control tasks: Gymnasium environments and vectorised classic control, MLPs, NumPy acting."""
