"""Estimators: the probability that a node is accepted."""
