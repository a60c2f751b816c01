"""CUTLASS GEMMs over cluster shapes, built by one command. The book and the tests need no build."""
