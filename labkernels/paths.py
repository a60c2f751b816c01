"""Where things lie: in the checkout around the package; without one, in the package and the user's cache."""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
BOOK = ROOT / "book"
IS_CHECKOUT = (ROOT / "pyproject.toml").is_file() and BOOK.is_dir()
DATA = (ROOT if IS_CHECKOUT else PACKAGE) / "data"
CACHE = (
    ROOT / ".cache"
    if IS_CHECKOUT
    else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labkernels"
)
