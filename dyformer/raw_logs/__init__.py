"""How a raw log is read: the plan of its columns, and its rows as texts with the reasons of those refused."""
