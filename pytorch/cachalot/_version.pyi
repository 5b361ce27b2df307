# The build writes _version.py.
__version__: str
