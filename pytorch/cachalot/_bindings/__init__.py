"""C libraries through ctypes: libcachalot_torch.so and its adapters, the CUDA driver, NVML and NCCL."""
