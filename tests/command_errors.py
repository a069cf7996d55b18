"""What failed commands print."""

import pytest


def the_error(capsys: pytest.CaptureFixture[str]) -> str:
    """What a failed command said: exactly one line."""
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    return captured.err.removeprefix("jaxretr: error: ").rstrip("\n")
