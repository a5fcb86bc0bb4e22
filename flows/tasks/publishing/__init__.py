"""What the champion publishes: its succession, its forecasts and what came of them, and their export."""
