/* The C API from an installed package, by a C compiler. Without a GPU the library drives a simulated device. */
#include <stdio.h>

#include "cachalot/c_api.h"

int main(void) {
  void* block = cachalot_malloc((size_t)3 << 20, 0, NULL);
  if (block == NULL) {
    printf("C: no memory: %s\n", cachalot_last_error());
    return 1;
  }
  const int held = cachalot_memory_allocated(0) == (size_t)3 << 20 && cachalot_memory_reserved(0) == (size_t)20 << 20;
  cachalot_free(block, (size_t)3 << 20, 0, NULL);
  const int given_back = cachalot_empty_cache(-1) == 0 && cachalot_memory_reserved(0) == 0;
  printf("C: held %s, given back %s\n", held ? "right" : "WRONG", given_back ? "right" : "WRONG");
  return held && given_back ? 0 : 1;
}
