"""Replicas: several servers behind one front that loses no stream, and where they are deployed."""
