"""`seckill torture`: the sale under faults, and a judge who sees only the history.

A run has a stage (servers, instances, and a proxy on each path between them), buyers who retry as real clients do,
and a nemesis. Every request, answer, fault and observation is written to a history; `judge` reads nothing else.
"""
