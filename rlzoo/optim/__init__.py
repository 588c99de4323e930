"""Optimisation: objectives, Adam, natural gradients."""
