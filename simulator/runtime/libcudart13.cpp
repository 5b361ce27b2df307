// libcudart.so.13 for programs that load it by name: all that it has is the simulator's, which this library needs.
