"""Addresses of artifacts -> addresses of new ones: plain functions that read, compute, write and return.

They do not import Prefect: a flow makes tasks of them, and a command calls them directly.
"""
