"""An experiment -> its settings, methods, tables and plots, and the Python API."""
