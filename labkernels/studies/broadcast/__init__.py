"""Distributed shared memory, and multicast against it."""
