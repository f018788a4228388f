"""Proves or refutes that a recipe, or a server that anybody runs, decodes without loss."""
