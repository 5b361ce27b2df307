/* ONNX Runtime's memory from libcachalot.so: the addresses of three functions, as options of its CUDA execution provider. This
 * program makes the options and calls the functions as the provider does; see docs/guides/libraries.md. */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

#include "cachalot/c_api.h"

int main(void) {
  /* The provider's device_id, and the default stream: ONNX Runtime works on it with such functions. */
  if (cachalot_onnxruntime_bind(0, NULL) != CACHALOT_OK) {
    fprintf(stderr, "%s\n", cachalot_last_error());
    return 1;
  }
  const char* const keys[] = {"gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache"};
  const uintptr_t addresses[] = {(uintptr_t)cachalot_onnxruntime_alloc, (uintptr_t)cachalot_onnxruntime_free,
                                 (uintptr_t)cachalot_onnxruntime_empty_cache};
  char values[3][24];
  for (int i = 0; i < 3; ++i) {
    snprintf(values[i], sizeof(values[i]), "%" PRIuPTR, addresses[i]);
    printf("%s has %s value\n", keys[i], values[i][0] != '0' ? "a" : "no");
  }
  /* OrtApi::UpdateCUDAProviderOptions(options, keys, values, 3) */

  void* const tensor = cachalot_onnxruntime_alloc(1000);
  printf("a tensor of 1000 bytes takes %zu bytes\n", cachalot_memory_allocated(0));
  cachalot_onnxruntime_free(tensor);
  cachalot_onnxruntime_empty_cache();
  printf("reserved at the end: %zu bytes\n", cachalot_memory_reserved(0));
  return tensor != NULL && cachalot_memory_reserved(0) == 0 ? 0 : 1;
}
