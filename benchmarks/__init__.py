"""What the project measures: ours, the peer and the limit side by side, in one run."""
