"""The steps of the pipeline as plain functions: read, compute, write, return the address.

Nothing here knows Prefect: a flow makes tasks of these functions, a command calls them directly.
"""
