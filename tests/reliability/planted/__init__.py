"""The bugs that are planted, by folders."""

from planted import devices, foundations, heap, users

BUGS = foundations.BUGS + heap.BUGS + devices.BUGS + users.BUGS
