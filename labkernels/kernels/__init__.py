"""What is timed, and how it becomes machine code."""
