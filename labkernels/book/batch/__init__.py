"""Batches: chapters with many parameter sets, executed by papermill on one GPU or a fleet of them."""
