"""Policies: choose which nodes to expand and which to keep."""
