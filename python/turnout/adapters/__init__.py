"""Turnout inside hosts that people run: a module or package per host, each with its own extra (`docs/embedding`)."""
