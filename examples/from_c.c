/* The C API: allocate, look, free. Where there is no GPU it runs on a simulated one, whose memory must not be touched. */
#include <stdio.h>

#include "cachalot/c_api.h"

int main(void) {
  void* block = cachalot_malloc((size_t)3 << 20, 0, NULL);
  if (block == NULL) {
    fprintf(stderr, "%s\n", cachalot_last_error());
    return 1;
  }
  printf("%zu bytes allocated, %zu reserved\n", cachalot_memory_allocated(0), cachalot_memory_reserved(0));
  cachalot_free(block, (size_t)3 << 20, 0, NULL);

  char* json = cachalot_memory_stats_json(0);
  if (json != NULL) printf("%s\n", json);
  cachalot_string_free(json);
  return 0;
}
