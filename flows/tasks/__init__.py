"""Addresses of artifacts -> addresses of new ones: plain functions that read, compute, write and return.

They do not import Prefect: a flow turns them into tasks, and a command calls them directly.
"""
