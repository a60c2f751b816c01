"""Measurements on disk: `data/*.csv`, described by `data/datapackage.json`, read and written whole."""

from labkernels.store.datasheet import DataSheet, datasheet
from labkernels.store.schema import Problem
from labkernels.store.store import RUNS, Store, StoreError, new_run_id, published

__all__ = ["RUNS", "DataSheet", "Problem", "Store", "StoreError", "datasheet", "new_run_id", "published"]
