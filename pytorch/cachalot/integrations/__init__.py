"""One module for each GPU library that cachalot can serve beside PyTorch; each is imported when it is asked for."""
