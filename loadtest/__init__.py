"""Load tests and the benchmark. Not a part of the installed package."""
