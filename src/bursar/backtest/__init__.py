"""The time machine: what a draft would have decided of recorded requests."""
