"""Tables of metrics: as text for people, as LaTeX (booktabs) and as Markdown."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

FORMATS = ("table", "json", "latex", "markdown")

# A hyphen before a number is a minus, which LaTeX has only in formulas.
_MINUS = re.compile(r"(?<![\w.])-(?=\d)")
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_"},
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "†": r"\textsuperscript{\dag}",
}
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|~#])")


@dataclass(frozen=True)
class Cell:
    """One entry of a table.

    Attributes:
      text: text as it is printed.
      best: whether it is the best of its column; bold where there is bold type.
      marked: whether it gets a dagger, which a note explains.
    """

    text: str
    best: bool = False
    marked: bool = False


@dataclass(frozen=True)
class Row:
    """A line of a table; `ruled` puts a rule above it."""

    name: str
    cells: Sequence[Cell]
    ruled: bool = False


@dataclass(frozen=True)
class Grid:
    """A table with a title, heads, rows and notes, in no notation yet.

    Attributes:
      title: title without a full stop.
      head: head of the first column, which holds the rows' names.
      columns: heads of the other columns.
      rows: rows with as many cells as there are columns.
      notes: full sentences that explain the table.
    """

    title: str
    head: str
    columns: Sequence[str]
    rows: Sequence[Row]
    notes: Sequence[str] = ()

    def notes_with_bold(self) -> list[str]:
        """Return the notes, with one that explains bold type if there is any."""
        bold = any(cell.best for row in self.rows for cell in row.cells)
        return ["Bold: the best of its column."] * bold + list(self.notes)


def render(grids: Sequence[Grid], form: str) -> str:
    """Return all tables as text, one after the other.

    Args:
      form: "table", "latex" or "markdown".
    """
    write = {"table": as_text, "latex": as_latex, "markdown": as_markdown}[form]
    return "\n\n".join(map(write, grids))


def as_text(grid: Grid) -> str:
    """Return a table in aligned columns; daggers follow the numbers, bold type is left out."""
    marks = any(cell.marked for row in grid.rows for cell in row.cells)
    heads = [grid.head, *(column + " " * marks for column in grid.columns)]
    rows = [
        [" ".join(row.name.split()), *(cell.text + ("†" if cell.marked else " ") * marks for cell in row.cells)]
        for row in grid.rows
    ]
    head, *lines = [line.rstrip() for line in _tabulated(heads, rows, "plain").splitlines()]
    rule = "-" * max(map(len, [head, *lines]))
    ruled = [[rule, line] if row.ruled else [line] for row, line in zip(grid.rows, lines, strict=True)]
    return "\n".join([grid.title, head, *(line for pair in ruled for line in pair), *grid.notes])


def as_markdown(grid: Grid) -> str:
    """Return a table in GitHub's Markdown, with the notes below it."""
    rows = []
    for row in grid.rows:
        texts = [_markdown(cell.text) for cell in row.cells]
        bold = [f"**{text}**" if cell.best else text for text, cell in zip(texts, row.cells, strict=True)]
        marked = [text + "†" * cell.marked for text, cell in zip(bold, row.cells, strict=True)]
        rows.append([_markdown(row.name), *marked])
    heads = [_markdown(name) for name in (grid.head, *grid.columns)]
    lines = [f"**{_markdown(grid.title)}**", "", _tabulated(heads, rows, "pipe")]
    if notes := grid.notes_with_bold():
        lines += ["", " ".join(map(_markdown, notes))]
    return "\n".join(lines)


def _tabulated(heads: Sequence[str], rows: Sequence[Sequence[str]], form: str) -> str:
    """Align names on the left and numbers on the right, each in its own notation."""
    from tabulate import tabulate

    columns = ("left", *("right" for _ in heads[1:]))
    return tabulate(rows, heads, tablefmt=form, colalign=columns, disable_numparse=True, preserve_whitespace=True)


def as_latex(grid: Grid) -> str:
    """Return a LaTeX table environment with booktabs' rules; title and notes are its caption."""
    # tabulate has these rules only together with its own escapes, which would escape bold type and daggers.
    lines = [
        "% needs \\usepackage{booktabs}, and \\usepackage[T1]{fontenc}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{latex_escaped(' '.join([grid.title + '.', *grid.notes_with_bold()]))}}}",
        f"\\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        "\\toprule",
        _latex_row([latex_escaped(name) for name in (grid.head, *grid.columns)]),
        "\\midrule",
    ]
    for row in grid.rows:
        cells = []
        for cell in row.cells:
            text = _MINUS.sub("$-$", latex_escaped(cell.text))
            cells.append((f"\\textbf{{{text}}}" if cell.best else text) + (_LATEX["†"] if cell.marked else ""))
        lines += ["\\midrule"] * row.ruled
        lines.append(_latex_row([latex_escaped(row.name), *cells]))
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}"])


def latex_escaped(text: str) -> str:
    """Return text that LaTeX prints unchanged, on one line."""
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(text.split()))


def _markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def _latex_row(cells: Sequence[str]) -> str:
    # A row that begins with a bracket would be read as an option of the line break before it.
    return " & ".join(f"{{{cell}}}" if cell.startswith("[") else cell for cell in cells) + r" \\"


def shortened(names: Sequence[str]) -> list[str]:
    """Return the last parts of each path, as many as tell it from the others; names that occur twice are numbered."""
    parts = [PurePath(name).parts or (name,) for name in names]
    short = []
    for path in parts:
        others = [other for other in parts if other != path]
        length = next(
            (n for n in range(1, len(path)) if all(other[-n:] != path[-n:] for other in others)),
            len(path),
        )
        short.append(str(PurePath(*path[-length:])))
    seen: Counter[str] = Counter()
    for place, name in enumerate(short):
        seen[name] += 1
        if seen[name] > 1:
            short[place] = f"{name} ({seen[name]})"
    return short
