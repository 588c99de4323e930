"""Policies that leave the zoo: loading, exporting, and a repository on the Hub with its model card."""
