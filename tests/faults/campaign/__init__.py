"""Attacks on rlzoo: each family makes hostile inputs from a seed, and says what a user would have seen go wrong.

python -m tests.faults.campaign suites --runs 1000 --seed 7
"""
