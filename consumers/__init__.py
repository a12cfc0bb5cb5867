"""The worker: batchers and offset ledger (pure), instance pool, worker loop."""
