"""One tile for several CTAs of a cluster."""
