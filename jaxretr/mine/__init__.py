"""Hard negatives and lexical sets. `jaxretr.mine(...)`, the function, is in jaxretr/mine/mining.py."""
