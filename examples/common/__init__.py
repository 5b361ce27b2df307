"""The common parts of the PyTorch examples."""
