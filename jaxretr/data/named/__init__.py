"""Data sets by name: `ir_datasets:ID`, `tfds:NAME`, `hf:OWNER/NAME` and `files:PATH`, wherever a data file or folder is read."""
