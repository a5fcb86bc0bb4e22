"""What the champion publishes: who it was and is, its forecasts and what came of them, and their export."""
