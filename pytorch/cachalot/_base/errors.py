"""The one exception of its own that the package raises."""


class EnableError(RuntimeError):
    """cachalot cannot become the allocator of PyTorch or of another library; the message says why and what to do. Nothing was changed."""
