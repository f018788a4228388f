"""The `sapwood` command."""
