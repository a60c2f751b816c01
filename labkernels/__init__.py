"""Laboratory of *Which Load?*: TMA, multicast, DSM and cp.async on NVIDIA Hopper, measured."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["Question", "advise"]


def __getattr__(name: str) -> Any:
    if name in __all__:  # importing the package stays free of imports of its own
        from labkernels.model import advisor

        return getattr(advisor, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
