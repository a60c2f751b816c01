"""TMA or not, inside a kernel: the operand's consumer is there, and what it needs besides bytes is taken."""
