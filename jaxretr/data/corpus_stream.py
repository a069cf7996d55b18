"""A corpus of one or more files that is read several times and never kept in memory."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from jaxretr.data.corpus import Passage, passage_rows, rows_fingerprint
from jaxretr.data.source import Input
from jaxretr.data.text_rows import BadRows, RowError, find_input, json_object, numbered_lines
from jaxretr.runtime.errors import UserError


class CorpusStream:
    """The passages of one file, then of the next; a row is a passage's position among all of them.

    Rows and fingerprint equal those of the `Corpus` of all these passages.

    Attributes:
      paths: the files.
      name: the corpus's name in messages.
      num_rows: N.
      fingerprint: a sha256 (hexadecimal) over all ids, titles and texts, equal to `Corpus.fingerprint()`.
    """

    def __init__(
        self,
        paths: Sequence[Input],
        *,
        skip_bad: bool = False,
        watch: Callable[[Iterable[Passage]], Iterator[Passage]] = iter,
    ):
        """Read everything twice: for the rows and their ids, and for the fingerprint.

        Args:
          paths: files or BEIR folders, as `iter_passages` takes them.
          skip_bad: whether bad rows and repeated ids are skipped, with a warning that counts them.
          watch: wraps an iteration over passages, to show progress.

        Raises:
          UserError: a bad row or a repeated id (as `path:line: what; remedy`), no passages, or no such file.
        """
        self.paths = [find_input(path, "corpus.jsonl") for path in paths]
        self.name = " and ".join(map(str, self.paths))
        self._repeated: frozenset[tuple[int, int]] = frozenset()
        for path in self.paths:
            if not path.is_file():
                raise UserError(f"{path}: is not a regular file, but a corpus is read several times; save it as a file")
        all_bad = [BadRows(path, skip_bad) for path in self.paths]
        hashes = array("q")
        kept = [0] * len(self.paths)

        def hashed() -> Iterator[Passage]:
            for file, _, passage in self._numbered(all_bad):
                # 8 bytes per passage reveal possible repeated ids; the ids themselves would take ten times that.
                hashes.append(hash(passage.id))
                kept[file] += 1
                yield passage

        for _ in watch(hashed()):
            pass
        self._repeated = self._find_repeated(hashes, all_bad)
        for file, bad in enumerate(all_bad):
            bad.report(kept[file] - sum(repeated == file for repeated, _ in self._repeated))
        self.num_rows = len(hashes) - len(self._repeated)
        if not self.num_rows:
            count = sum(bad.count for bad in all_bad)
            first = next((bad.first for bad in all_bad if bad.first), "")
            after = f" besides {count} bad rows (the first: {first})" if count else ""
            raise UserError(f"{self.name}: no passages{after}; give a corpus with at least one row")
        rows = map(attrgetter("id", "title", "text"), watch(passage for _, passage in self.passages()))
        self.fingerprint = rows_fingerprint(rows, self.num_rows)

    def passages(self) -> Iterator[tuple[int, Passage]]:
        """Yield (line number in its file, passage), row by row."""
        for _, line, passage in self._numbered():
            yield line, passage

    def placed(self) -> Iterator[tuple[str, Passage]]:
        """Yield ("path:line", passage), row by row."""
        for file, line, passage in self._numbered():
            yield f"{self.paths[file]}:{line}", passage

    def with_field(self, name: str) -> Iterator[tuple[str, Passage, Any]]:
        """Yield ("path:line", passage, value of a further field of its JSON row), row by row.

        Raises:
          UserError: a file that is not JSON lines, or a row without the field.
        """
        of_file, lines = -1, iter(())
        for file, line, passage in self._numbered():
            if file != of_file:
                of_file, lines = file, numbered_lines(self.paths[file])
            source = next(source for number, source in lines if number == line)
            try:
                row = json_object(source)
            except RowError:
                raise UserError(
                    f"{self.paths[file]}:{line}: not a JSON object, so it has no field '{name}'; give the corpus as JSON "
                    "lines, or tell the documents apart by title or id"
                ) from None
            if row.get(name) is None:
                there = ", ".join(sorted(row))
                raise UserError(f"{self.paths[file]}:{line}: has no field '{name}' (it has {there}); name one of them")
            yield f"{self.paths[file]}:{line}", passage, row[name]

    def _numbered(self, all_bad: Sequence[BadRows] | None = None) -> Iterator[tuple[int, int, Passage]]:
        """Yield (number of the file, line number, passage)."""
        # The first reading counted or refused bad rows.
        for file, bad in enumerate(all_bad or [BadRows(path, skip=True) for path in self.paths]):
            for line, passage in bad.good(passage_rows(bad.path)):
                if (file, line) not in self._repeated:
                    yield file, line, passage

    def _find_repeated(self, hashes: array, all_bad: Sequence[BadRows]) -> frozenset[tuple[int, int]]:
        """Return (number of the file, line) of the passages whose id occurs earlier."""
        in_order = np.sort(np.frombuffer(hashes, np.int64))
        suspects = set(in_order[1:][in_order[1:] == in_order[:-1]].tolist())
        if not suspects:
            return frozenset()
        first_place: dict[str, tuple[int, int]] = {}
        repeated = set()
        for file, line, passage in self._numbered():
            if hash(passage.id) not in suspects:
                continue
            first = first_place.setdefault(passage.id, (file, line))
            if first != (file, line):
                where = f"{self.paths[first[0]]}:{first[1]}"
                problem = f"duplicate id '{passage.id}' (first at {where}); give every passage an id of its own"
                all_bad[file].add(line, problem)
                repeated.add((file, line))
        return frozenset(repeated)
