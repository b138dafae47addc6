"""The telemetry of an instance: log lines, metrics, traces."""
