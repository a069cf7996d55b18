"""The lines that the commands print about the files they write."""

import logging

from jaxretr.runtime.storage.files import open_descriptor

log = logging.getLogger(__name__)


def say_written(path: str, what: str) -> None:
    """Print a line about a file's content; to the log if the file is stdout, whose reader expects the file alone."""
    line = f"{path}: {what}"
    if open_descriptor(path) == 1:
        log.info("%s", line)
    else:
        print(line)
