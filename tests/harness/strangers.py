"""What others may write where the locks keep what an owner says of itself, and what a list must make of it."""

import json
from typing import Any, Final

# Each with what a list for people shows of it, if it is one of ours by its form.
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
    """What a parser says that knows no NaN and no Infinity, and half a character as little."""

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no JSON")

    found = json.loads(text, parse_constant=refuse)
    json.dumps(found, ensure_ascii=False).encode()
    return found
