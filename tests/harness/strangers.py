"""List foreign data in the place of an owner's description in a lock, and how it must be shown."""

import json
from typing import Any, Final

# For each value: the owner that a list shows, if the value has the form of ours.
STRANGERS: Final = {
    "a number that is none": ('{"instance":"a","pid":NaN}', ""),
    "a number that no float can hold": ('{"instance":"a","pid":1e999}', ""),
    "such a one, deep inside": ('{"instance":"a","of":[{"deep":-1e999}]}', ""),
    "such a one as the time": ('{"instance":"a","since":1e999}', ""),
    "a whole number that no float can hold": ('{"instance":"here","since":1' + "0" * 400 + "}", "here"),
    "markup": ('{"instance":"[/x]","pid":1,"thread":"[red]"}', "[/x]"),
    "a command to the terminal": ('{"instance":"\\u001b[31mred","pid":1}', "\\x1b[31mred"),
    "half a character": ('{"instance":"there","of":{"\\ud800":["\\ud800"]}}', "there"),
    "no object": ("[1e999]", ""),
}


def strict_json(text: str) -> Any:
    """Parse JSON strictly, without NaN, Infinity and half surrogate pairs."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    found = json.loads(text, parse_constant=refuse)
    json.dumps(found, ensure_ascii=False).encode()
    return found
