"""Reports of memory: of a device, of a failed request, and of the ranks of a job."""
