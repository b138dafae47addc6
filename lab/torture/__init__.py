"""`seckill torture`: the sale under faults, and a judge who was not there.

A run has a stage (servers, instances, and a proxy on each path between them), buyers who retry as real clients do,
and a nemesis. Everything that was asked, answered, broken and seen is written to a history; `judge` reads nothing else.
"""
