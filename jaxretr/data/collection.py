"""The interface of every source of named data: tables of rows, and a collection of such tables."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxretr.runtime.errors import UserError, did_you_mean

Row = dict[str, Any]

CORPUS, QUERIES, QRELS, EXAMPLES = "corpus", "queries", "qrels", "examples"

# Fields that a passage's id, text and title are read from, the first that there is.
ID_FIELDS = ("_id", "id", "docid")
TEXT_FIELDS = ("text", "contents")
TITLE_FIELDS = ("title",)
PASSAGE_FIELDS = frozenset((*ID_FIELDS, *TEXT_FIELDS, *TITLE_FIELDS))

# Names of the config with judgements: in the BEIR sets on the hub and of `jaxretr data build`, and in MTEB's sets.
_QRELS_CONFIGS = (QRELS, "default")
_EXAMPLES_CONFIGS = (EXAMPLES, "train")
# The split of a table with several splits, where none is named.
_FIRST_CHOICE = "train"
_LONGEST_REASON = 160


@dataclass(frozen=True)
class Table:
    """Rows as a file of JSON lines has them, with facts that tell whether they have changed.

    Attributes:
      rows: yields the rows in their order, from the first one at every call.
      facts: JSON values that differ if the content differs: a version and checksums, or sizes and modification times.
      verify: compares the files with their checksums; None: the source does that itself, or has none.
    """

    rows: Callable[[], Iterator[Row]]
    facts: Callable[[], list[Any]]
    verify: Callable[[], None] | None = None


@dataclass(frozen=True)
class Collection:
    """The tables of one name.

    Attributes:
      name: the name as the user writes it, without a part.
      parts: "corpus", "queries", "qrels/SPLIT", "examples", or the splits of a data set that has only one kind of rows.
      main: the part that is read where no part is named; None: the collection stands for a BEIR folder.
    """

    name: str
    parts: Mapping[str, Table]
    main: str | None = None

    @property
    def splits(self) -> list[str]:
        """The splits that have judgements, sorted."""
        return sorted(part.removeprefix(f"{QRELS}/") for part in self.parts if part.startswith(f"{QRELS}/"))

    @property
    def is_folder(self) -> bool:
        """Whether the collection stands for a BEIR folder: several parts, none of which is the main one."""
        return self.main is None and (CORPUS in self.parts or QUERIES in self.parts)

    def table(self, part: str | None) -> Table:
        """Return the table of a part, by default the main one.

        Raises:
          UserError: there is none.
        """
        wanted = self.main if part is None else part
        if wanted is not None and wanted in self.parts:
            return self.parts[wanted]
        there = ", ".join(self.parts) or "nothing that can be read"
        if wanted is None:
            raise UserError(
                f"{self.name}: has {there}; name one of them, as {self.name}#{next(iter(self.parts), 'PART')}"
            )
        raise UserError(
            f"{self.name}: has no {wanted}, only {there}{did_you_mean(wanted, self.parts) or '; name one of them'}"
        )


def of_configs(
    name: str, configs: Mapping[str, Mapping[str, Table]], config: str | None, split: str | None
) -> Collection:
    """Return the collection of a data set with configs and splits, as TFDS and the Hugging Face hub have them.

    With the configs "corpus", "queries" and "qrels" (or "default", as in MTEB's sets) it is a BEIR folder; a config that
    is named, or the only one, is a table.

    Args:
      name: the data set's name, for messages.
      configs: config -> split -> table.

    Raises:
      UserError: there is no such config or split, or neither is named and there are several.
    """
    if config is not None and config not in configs:
        hint = did_you_mean(config, configs) or f"; it has {', '.join(configs)}"
        raise UserError(f"{name}: no config '{config}'{hint}")
    if config is None and len(configs) == 1:
        config = next(iter(configs))
    if config is None and {CORPUS, QUERIES} & configs.keys():
        if split is not None:
            raise UserError(f"{name}: is a collection of {', '.join(configs)}; name one of them before [{split}]")
        return Collection(name, _beir_parts(name, configs))
    if config is None and len(configs) > 1 and "default" not in configs:
        raise UserError(f"{name}: has the configs {', '.join(configs)}; name one, as NAME/{next(iter(configs))}")
    if not configs:
        raise UserError(f"{name}: has no tables; check the name")
    config = config or ("default" if "default" in configs else next(iter(configs)))
    splits = configs[config]
    if split is not None and split not in splits:
        hint = did_you_mean(split, splits) or f"; it has {', '.join(splits)}"
        raise UserError(f"{name}: no split '{split}'{hint}")
    if split is None:
        split = next(iter(splits)) if len(splits) == 1 else _FIRST_CHOICE if _FIRST_CHOICE in splits else None
    if config == QRELS:
        return Collection(
            name, {f"{QRELS}/{each}": table for each, table in splits.items()}, split and f"{QRELS}/{split}"
        )
    if config in (CORPUS, QUERIES) and split is not None:
        return Collection(name, {config: splits[split]}, config)
    return Collection(name, dict(splits), split)


def _beir_parts(name: str, configs: Mapping[str, Mapping[str, Table]]) -> dict[str, Table]:
    parts: dict[str, Table] = {}
    for config in (CORPUS, QUERIES):
        if splits := configs.get(config):
            if len(splits) > 1 and config not in splits:
                raise UserError(f"{name}/{config}: has the splits {', '.join(splits)}; one is needed, '{config}'")
            parts[config] = splits.get(config) or next(iter(splits.values()))
    judged = next((configs[config] for config in _QRELS_CONFIGS if config in configs), {})
    parts |= {f"{QRELS}/{split}": table for split, table in judged.items()}
    examples = next((configs[config] for config in _EXAMPLES_CONFIGS if config in configs), {})
    return parts | ({EXAMPLES: next(iter(examples.values()))} if examples else {})


def shortened(error: BaseException) -> str:
    """The first line of another package's error, of which a message keeps at most 160 characters."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= _LONGEST_REASON else f"{line[: _LONGEST_REASON - 3]}..."
