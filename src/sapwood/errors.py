"""What can go wrong by the user's hand: one sentence that names the value, the rule and the way out."""


class SapwoodError(ValueError):
    """Bad input; the command line prints it and exits with code 2."""


class Unsound(SapwoodError):
    """A combination of parts that would change the target's law."""


class OutOfMemory(SapwoodError):
    """No room for the keys and values of a pass; nothing was changed, and the same pass may succeed later."""
