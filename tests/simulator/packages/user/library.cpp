// A library of a package that uses functions of CUDA: it imports two, of which one does not exist, and looks others up by name.
// It is never loaded (list_missing.py).
#include <cstddef>

extern "C" {

int cudaMalloc(void** address, std::size_t bytes);
int cudaNoSuchFunction();

const char* user_names[] = {"cuMemAlloc", "cuMemcpyHtoD_v2_ptds", "cuNobodyDeclaresThis", "cuMemcpy3D_v2"};

int user_calls() {
  void* address = nullptr;
  return cudaMalloc(&address, 1) + cudaNoSuchFunction();
}

}  // extern "C"
