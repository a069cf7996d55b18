"""Data sets by name: `ir_datasets:ID`, `tfds:NAME` and `hf:OWNER/NAME`, wherever a data file or folder is read."""
