"""Measurements on disk: one CSV file per run and table in `data/`, described by `data/datapackage.json`."""

from labkernels.store.datasheet import DataSheet, datasheet
from labkernels.store.schema import RUNS, Problem, StoreError
from labkernels.store.store import Store, new_run_id, published

__all__ = ["RUNS", "DataSheet", "Problem", "Store", "StoreError", "datasheet", "new_run_id", "published"]
