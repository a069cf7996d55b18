"""The live index: passages that are added, replaced and deleted while they are searched, durable in SQLite.

`database` holds what was acknowledged, `group_commit` writes it, `view` is the index in memory that searches read,
`snapshots` are files from which it opens quickly, `upkeep` renews them in the background, `reindex` moves a folder to
another model, and `index.LiveIndex` combines them.
"""
