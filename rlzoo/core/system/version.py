"""The version of rlzoo."""

__version__ = "0.1.0"
