// For programs.py: PyTorch's memory at a given address, which no call in Python asks for.
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstddef>
#include <vector>

extern "C" void place(std::size_t bytes, void* address) {
  static std::vector<c10::DataPtr>& placed = *new std::vector<c10::DataPtr>;  // until the process ends
  placed.push_back(c10::cuda::CUDACachingAllocator::allocateWithAddress(bytes, address));
}
