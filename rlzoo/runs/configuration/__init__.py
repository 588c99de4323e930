"""What a run is told: settings by name, their defaults, presets, and configurations of older versions."""
