"""Searches for the settings of methods, by the command `tune`."""
