"""What L2 keeps: lines fetched ahead of their copies, and lines that are to stay or to go."""
