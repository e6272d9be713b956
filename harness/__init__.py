"""The Hide-and-Seek competition harness."""
