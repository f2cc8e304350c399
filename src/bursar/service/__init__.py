"""The processes: `bursar serve` and its children, the API, the worker, embedded PostgreSQL,
backups."""
