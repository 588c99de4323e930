"""The configuration of a run: settings by name, their defaults, and presets."""
