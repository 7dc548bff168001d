"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# An example that is slow on a busy machine is no failure: timing is never asserted.
settings.register_profile("turnout", deadline=None)
settings.load_profile("turnout")
