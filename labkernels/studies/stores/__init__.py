"""The way out: tiles from registers to global memory, by stores of threads and by the copy engine."""
