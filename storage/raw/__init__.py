"""Addresses of raw logs -> bytes."""
