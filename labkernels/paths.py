"""Where things lie: the package, the checkout around it, and what it keeps there."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
ROOT = PACKAGE.parent
DATA = ROOT / "data"
BOOK = ROOT / "book"
CACHE = ROOT / ".cache"
