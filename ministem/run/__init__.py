"""What makes a run out of a model: options, start, checkpoints, reports."""
