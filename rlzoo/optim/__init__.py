"""How objectives are differentiated and improved: Adam, natural gradients."""
