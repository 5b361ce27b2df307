"""Helpers without a GPU: errors, the logger, texts, sizes, and files that are written whole."""
