"""Addresses of snapshots and models -> addresses of scores, ranks, audits and of the champion's record."""
