"""The operations: pure functions from checkpoints to plans or results. No output, no printing, no click."""
