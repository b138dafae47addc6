"""Every step fails once: each operation is run again and again, and a fault strikes at one step of it after the other.

`python -m lab.steps` runs it. As SQLite's tests of I/O errors do: the n-th step fails, for n = 1, 2, ... until the
operation gets through without a fault, and after each run everything is looked at.
"""
