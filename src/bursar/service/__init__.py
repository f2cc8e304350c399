"""What `bursar serve` runs on: the data folder, embedded PostgreSQL, the supervisor."""
