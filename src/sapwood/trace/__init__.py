"""`sapwood trace` and `replay`: record rounds, show them, replay them with another recipe."""
