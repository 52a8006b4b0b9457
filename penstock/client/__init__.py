"""Producers, consumers and the admin client: what talks to a cluster from outside.

Decisions (which queue, retry or not, what is whose) are plain code; one event loop per process moves bytes. The
public names are at `penstock` itself.
"""
