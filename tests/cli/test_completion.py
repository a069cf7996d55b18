"""`jaxretr completion`: the shells complete what the parsers know."""

import shutil
import subprocess
from pathlib import Path

import pytest

from jaxretr import cli

# The words before the cursor, the last one begun -> what is offered.
OFFERED = {
    "enc": {"encode"},
    "encode m --corp": {"--corpus"},
    "mine lex": {"lexical"},
    "mine lexical --corp": {"--corpus"},
    "export m --to s": {"sentence-transformers", "stablehlo", "scann"},
    "completion z": {"zsh"},
    "train dpr_sm": {"dpr_small"},
    "train dpr_small --train.ste": {"--train.steps"},
}
BASH = """\
complete() { :; }
COMP_WORDS=(jaxretr "$@"); COMP_CWORD=$#; source "$SCRIPT"; _jaxretr; printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_a_shell_completes_commands_options_choices_and_settings(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    assert cli.main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    for words, offered in OFFERED.items():
        if shell == "bash":
            command = ["bash", "-c", BASH, "bash", *words.split(" ")]
        else:
            command = ["fish", "--no-config", "-c", f"source {script}; complete -C 'jaxretr {words}'"]
        done = subprocess.run(
            command, cwd=tmp_path, env={"SCRIPT": str(script), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
        )
        assert done.stderr == "" and {*done.stdout.split()} - {"script"} == offered, words
