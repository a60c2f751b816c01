"""Signs of life on stderr: a bar on a terminal, elsewhere a plain line now and then."""

import sys
import time
from collections.abc import Iterable, Iterator, Sized

from labkernels.protocols.experiment import Item

INTERVAL_S = 10.0


def track(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """The same items; who waits sees how many are done.

    Args:
        items: whatever takes long.
        what: a word or two for the reader.
        total: how many there are, where `items` does not tell.
    """
    if sys.stderr is None:
        yield from items
        return
    if sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(items, desc=what, total=total, leave=False)
        return
    told = time.monotonic()
    total = total or (len(items) if isinstance(items, Sized) else None)
    of = f" of {total}" if total else ""
    for number, item in enumerate(items):
        if time.monotonic() - told >= INTERVAL_S:
            told = time.monotonic()
            print(f"{what}: {number}{of}", file=sys.stderr, flush=True)
        yield item
