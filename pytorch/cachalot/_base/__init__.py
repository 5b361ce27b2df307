"""Helpers without a GPU: errors, the logger, the environment, texts, sizes, and files that are written whole."""
