"""`jaxretr update`: adds and deletes passages of a ScaNN index, and measures its certificate again."""

import argparse
import logging
from pathlib import Path

from jaxretr.commands.export_scann import print_certificate
from jaxretr.errors import UserError
from jaxretr.search.scann.index import ScannIndex
from jaxretr.search.scann.process import require_scann
from jaxretr.stores.opening import open_store

log = logging.getLogger(__name__)

# Of the passages: beyond it the tree no longer fits them.
_REBALANCE_FROM = 0.3


def run(args: argparse.Namespace) -> None:
    """Deletes, then adds, then writes the folder anew: it is the old one until the new one is complete."""
    require_scann()
    ids = [] if args.delete is None else _read_ids(Path(args.delete))
    store = None if args.add is None else open_store(args.add)
    index = ScannIndex.load(args.folder)
    if ids:
        index.delete(ids)
    added = replaced = 0
    if store is not None:
        replaced = index.add(store)
        added = store.meta.rows - replaced
    if args.rebalance or index.changed_share >= _REBALANCE_FROM:
        if not args.rebalance:
            log.info("%.0f%% of the passages changed since the tree was learnt: rebalancing", 100 * index.changed_share)
        index.rebalance(workdir=Path(args.folder).expanduser().absolute().parent)
    else:
        index.certify()
    index.save(args.folder)
    print_certificate(index)
    _warn(index)
    print(f"{args.folder}: {added} added, {replaced} replaced, {len(ids)} deleted; {len(index)} passages")


def _warn(index: ScannIndex) -> None:
    lines = () if index.certificate is None else index.certificate.lines
    for line in lines:
        found = line.recalls[0]
        if found.recall < line.target:
            log.warning("recall@%d is %.4f, below %g: rebalance the index", found.k, found.recall, line.target)


def _read_ids(path: Path) -> list[str]:
    """One id a line, as it stands there; empty lines are left out."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give a UTF-8 text file with one id a line") from error
    first: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        name = line.removesuffix("\r")
        if name and first.setdefault(name, number) != number:
            raise UserError(f"{path}:{number}: {name!r} stands in line {first[name]} as well; leave one out")
    return list(first)
