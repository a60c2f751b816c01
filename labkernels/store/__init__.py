"""Measurements on disk: `data/*.csv`, described by `data/datapackage.json`, read and written whole."""

from labkernels.store.schema import Problem
from labkernels.store.store import RUNS, Store, StoreError, new_run_id, published

__all__ = ["RUNS", "Problem", "Store", "StoreError", "new_run_id", "published"]
