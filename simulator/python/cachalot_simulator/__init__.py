"""What `cachalot simulate` does inside of Python programs: it watches PyTorch's memory and helps its ranks.

Each module has one task. torch_finder waits for torch, observer writes a JSON file for each process at its end, history
asks torch to record what it allocates, and peaks, places and trace_file evaluate this record. object_collectives and
absent_ranks replace functions of torch.distributed.
"""
