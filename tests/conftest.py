"""Settings that all tests share."""

from hypothesis import settings

# no deadline: a shared machine may stall; the same examples every time: a failure here is a failure anywhere
settings.register_profile("sapwood", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("sapwood")
