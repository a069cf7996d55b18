"""What the commands print about the files that they write."""

import logging

from jaxretr.storage.files import open_descriptor

log = logging.getLogger(__name__)


def say_written(path: str, what: str) -> None:
    """Prints what a file contains; to the log if the file is stdout itself, whose reader expects the file alone."""
    line = f"{path}: {what}"
    if open_descriptor(path) == 1:
        log.info("%s", line)
    else:
        print(line)
