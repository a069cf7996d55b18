"""`jaxretr completion`: the script by which a shell completes commands, options, their choices and a config's settings."""

import argparse
from collections.abc import Iterator

from jaxretr.cli.parsing import Commands

# A case has a pattern of the words before the one to complete, and what may come there.
_BASH = """\
_jaxretr() {
  local words
  case "${COMP_WORDS[*]:1:$((COMP_CWORD - 1))} " in
%s  esac
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _jaxretr jaxretr
"""
_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
autoload -Uz bashcompinit && bashcompinit
"""
_FISH = """\
function __jaxretr
  set -l before (commandline -opc)[2..] ''
  switch (string join ' ' -- $before)
%s  end
end
complete -c jaxretr -a '(__jaxretr)'
"""
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH + _BASH, "fish": _FISH}


def add_commands(commands: Commands) -> None:
    commands.command(
        "completion",
        "Print the script by which a shell completes commands, options and settings: source <(jaxretr completion bash) in\n"
        "~/.bashrc, the same with zsh in ~/.zshrc, and jaxretr completion fish | source in ~/.config/fish/config.fish.",
        "jaxretr completion bash",
    ).add_argument("shell", metavar="SHELL", choices=tuple(_SCRIPTS), help=f"{', '.join(_SCRIPTS)}")


def run(args: argparse.Namespace) -> None:
    """Print the script."""
    case = "  case '{}'\n    string split ' ' -- '{}'\n" if args.shell == "fish" else "    '{}') words='{}' ;;\n"
    star = "*" if args.shell == "fish" else "'*'"
    cases = [case.format(before.replace("*", star), " ".join(words)) for before, words in _cases()]
    print(_SCRIPTS[args.shell] % "".join(cases), end="")


def _cases() -> Iterator[tuple[str, list[str]]]:
    """Patterns, the narrower ones first, with what may follow."""
    from jaxretr import cli
    from jaxretr.config import all_settings
    from jaxretr.training.experiment import configs

    first, commands = cli.build_parser()
    for name in sorted(commands, reverse=True):  # "data convert" before "data"
        for action in commands[name]._actions:
            if action.choices is not None:
                before = [f"{option} " for option in action.option_strings] or [""]
                yield from (
                    (f"{name} *{option}" if option else f"{name} ", [*map(str, action.choices)]) for option in before
                )
        more = [*configs(), *(f"--{name}" for name in sorted(all_settings()))] if name in cli.WITH_SETTINGS else []
        yield f"{name} *", [*commands.actions(name), *commands[name].options, *more]
    yield "*", [*(name for name in commands if " " not in name), *first.options]
