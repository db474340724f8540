"""Files that are written whole or not at all."""

import io
import os
import pathlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def replaced_when_complete(path: str | pathlib.Path) -> Iterator[io.BufferedIOBase]:
    """
    Open a new file that takes the place of the one at ``path`` once the context ends without an error.

    :param path: path of the file; through links, and with folders that are made where they lack
    :return: the opened file
    """
    target = pathlib.Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".unfinished-{uuid.uuid4().hex}")
    try:
        with open(unfinished, "xb") as file:
            yield file
        os.replace(unfinished, target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
