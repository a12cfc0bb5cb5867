"""The model repository: directory rules, versions, loading, readiness."""
