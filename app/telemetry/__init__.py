"""What an instance tells of itself: log lines, metrics, traces."""
