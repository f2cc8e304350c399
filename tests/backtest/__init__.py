"""The time machine: backtests and drafts."""
