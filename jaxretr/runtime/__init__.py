"""The base of everything else: devices, hosts, storage, progress and errors."""
