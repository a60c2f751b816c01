"""Throughput of loads into one CTA's shared memory."""
