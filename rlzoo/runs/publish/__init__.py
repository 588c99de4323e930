"""Policies for other programs: loading, exporting, and a repository on the Hugging Face hub with its model card."""
