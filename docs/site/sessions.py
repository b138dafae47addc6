"""Shows what a docstring types as code: for Markdown ">>>" is a quotation, and a drawn tree one line."""

import re
from typing import Any

from griffe import Extension, Object

# From a prompt, or a line above a branch, to the next empty line.
TYPED = re.compile(r"^(?:>>> .*|.*\n├.*)(?:\n.+)*", re.MULTILINE)


class Sessions(Extension):
    """An extension of griffe, which reads the docstrings for the reference of fencelock."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Put each session between fences."""
        if obj.docstring:
            text = re.sub(r" +# doctest: .*", "", obj.docstring.value)
            obj.docstring.value = TYPED.sub(r"\n```python\n\g<0>\n```\n", text)
