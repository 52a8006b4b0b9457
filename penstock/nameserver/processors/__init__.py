"""Handlers of the name server's requests, by subject: what brokers send, what clients ask, what administrators do.

Each class has `register(table)`, which enters its handlers into a processor table.
"""
