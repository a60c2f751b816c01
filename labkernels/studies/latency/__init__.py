"""Latency of one transfer, and what issuing one takes."""
