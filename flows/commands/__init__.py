"""Commands of the terminal, a module for each group: arguments -> flows and tasks -> lines and files."""
