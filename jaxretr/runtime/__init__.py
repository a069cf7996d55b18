"""What everything else stands on: devices, hosts, storage, progress and errors."""
