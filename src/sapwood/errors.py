"""Errors that a user can cause: one sentence with the value, the rule and what to do."""


class SapwoodError(ValueError):
    """Bad input; the command line prints it and exits with code 2."""


class Unsound(SapwoodError):
    """A combination of parts that would change the target's distribution."""


class OutOfMemory(SapwoodError):
    """No KV blocks for a pass; nothing was changed, and the same pass may succeed later."""
