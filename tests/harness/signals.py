"""Signals that come at a chosen moment: as Python calls its handlers, between two steps of a function."""

import dis
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any


@contextmanager
def handled_at(number: int, codes: Collection[CodeType], handler: Callable[[], object]) -> Iterator[list[str]]:
    """Have this thread call `handler` in the block, once: behind the `number`-th call (from 0) of functions with these
    codes, which is where Python looks for signals. Yields the list that gets the line where that was.
    """
    calls = {
        code: {one.offset for one in dis.get_instructions(code) if one.opname.startswith("CALL")} for code in codes
    }
    called: dict[FrameType, bool] = {}
    seen, where = 0, list[str]()

    def step(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if event == "opcode":
            if called.get(frame) and not where:
                seen += 1
                if seen > number:
                    where.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
                    handler()
            called[frame] = frame.f_lasti in calls[frame.f_code]
        return step

    def begun(frame: FrameType, _: str, __: Any) -> Any:
        if frame.f_code not in calls:
            return None
        frame.f_trace_opcodes = True
        return step

    before = sys.gettrace()
    sys.settrace(begun)
    try:
        yield where
    finally:
        sys.settrace(before)
