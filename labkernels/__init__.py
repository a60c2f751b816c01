"""Laboratory of *Which Load?*: TMA, multicast, DSM and cp.async on NVIDIA Hopper, measured."""

__version__ = "0.1.0"
