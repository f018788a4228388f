"""`sapwood train`: train drafters on text that the target wrote."""
