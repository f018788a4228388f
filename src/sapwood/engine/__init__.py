"""The round loop, the scheduler that batches requests, and the cost model."""
