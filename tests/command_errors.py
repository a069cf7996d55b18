"""What failed commands print."""

import pytest


def the_error(capsys: pytest.CaptureFixture[str]) -> str:
    """What a failed command said: exactly one line."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("jaxretr: error: "), captured.err
    return captured.err.removeprefix("jaxretr: error: ").rstrip("\n")
