"""The one exception of its own that the package raises."""


class EnableError(RuntimeError):
    """cachalot cannot become PyTorch's allocator; the message says why and what to do. Nothing was changed."""
