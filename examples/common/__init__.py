"""What the PyTorch examples share."""
