"""The HTTP server: the decision API, metrics, health and the dashboard over one asynchronous router.

This module imports nothing: the client shares the messages of `turnout.server.schema` without the server's packages.
"""
