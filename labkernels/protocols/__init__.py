"""A kernel bound to its arguments, checked byte by byte, then timed."""
