"""Attention through a page table."""
