"""Searches for the settings of methods, and the settings that were chosen."""
