"""Everything in optimisation that is only there for speed. Without it, results are the same up to rounding."""
