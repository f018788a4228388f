"""Training drafters on text that the target itself wrote."""
