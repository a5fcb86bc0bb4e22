"""Bytes at a local or S3 address: whole or not there, and the checksums that find what changed in them."""
