// Stands for a real libcublas.so, which a program loads by name: it has a function that the simulator has, too, and one of its own.

extern "C" int cublasGetSmCountTarget(void*, int* count) {
  *count = 77;
  return 1;  // CUBLAS_STATUS_NOT_INITIALIZED: there is no GPU
}

extern "C" int cublasOnlyHere() { return 3; }
