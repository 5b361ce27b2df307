/* The C API as a C11 program sees it: the header first and alone, every function called with its documented types. */
#include "cachalot/c_api.h"

#if !defined(__STDC_VERSION__) || __STDC_VERSION__ < 201112L || defined(__cplusplus)
#error "this file tests the header as C11"
#endif

_Static_assert(CACHALOT_OK == 0, "success is 0");
_Static_assert(CACHALOT_VERSION ==
                   10000 * CACHALOT_VERSION_MAJOR + 100 * CACHALOT_VERSION_MINOR + CACHALOT_VERSION_PATCH,
               "the version as a number");
_Static_assert(sizeof(((cachalot_fragmentation_t*)0)->free_block_histogram) == 32 * sizeof(uint64_t), "32 entries");

int cachalot_c_program(void);

/* Sums up the bytes that are held. */
static void on_segment(const cachalot_segment_t* segment, void* context) {
  size_t* const held = context;
  if (segment->device != 0 || segment->address == NULL || segment->is_plain != 1) return;
  if (segment->begins != 0) *held += segment->size;
  if (segment->begins == 0) *held -= segment->size;
}

/* 0, or the number of the step that did not do what the header says. The default device has 80 GiB, no cache. */
int cachalot_c_program(void) {
  const size_t size = (size_t)3 << 20;
  const cudaStream_t stream = NULL;
  cachalot_fragmentation_t figures;

  if (cachalot_configure("max_split_size_mb:64") != CACHALOT_OK) return 1;
  void* const block = cachalot_malloc(size, 0, stream);
  if (block == NULL) return 2;
  if (cachalot_memory_allocated(0) != size || cachalot_max_memory_allocated(0) != size) return 3;
  if (cachalot_memory_reserved(0) <= size || cachalot_max_memory_reserved(0) <= size) return 4;
  if (cachalot_record_stream(block, stream) != CACHALOT_OK) return 5;
  if (cachalot_stream_ends(stream) != CACHALOT_OK) return 13;
  if (cachalot_fragmentation(0, &figures) != CACHALOT_OK) return 6;
  if (figures.requested_bytes != size || figures.free_blocks != 1 || figures.free_block_histogram[15] != 1) return 7;

  char* const stats = cachalot_memory_stats_json(0);
  char* const snapshot = cachalot_snapshot_json();
  if (stats == NULL || stats[0] != '{' || snapshot == NULL || snapshot[0] != '{') return 8;
  cachalot_string_free(stats);
  cachalot_string_free(snapshot);

  cachalot_free(block, size, 0, stream);
  if (cachalot_last_error()[0] != '\0') return 9;
  if (cachalot_empty_cache(-1) != CACHALOT_OK || cachalot_memory_reserved(0) != 0) return 10;
  if (cachalot_set_memory_fraction(0.5, 0) != CACHALOT_OK) return 11;
  if (cachalot_reset_peak_memory_stats(0) != CACHALOT_OK || cachalot_max_memory_reserved(0) != 0) return 12;
  if (cachalot_reset_accumulated_memory_stats(0) != CACHALOT_OK) return 13;

  void* const aligned = cachalot_malloc_aligned(size, 64 << 10, 0, stream);
  if (aligned == NULL || (uintptr_t)aligned % (64 << 10) != 0) return 20;
  cachalot_free(aligned, size, 0, stream);
  if (cachalot_last_error()[0] != '\0' || cachalot_malloc_aligned(size, 3, 0, stream) != NULL) return 21;

  void* const contiguous = cachalot_malloc_with_flags(size, 0, stream, CACHALOT_CONTIGUOUS);
  cachalot_shared_t shared;
  if (contiguous == NULL || cachalot_share(contiguous, &shared) != CACHALOT_OK) return 15;
  if (shared.kind != CACHALOT_SHARED_SEGMENT || shared.size != size || shared.offset != 0) return 16;
  if (cachalot_open_shared(NULL, 0) != NULL) return 17;
  if (cachalot_close_shared(contiguous) != CACHALOT_E_INVALID_ARGUMENT) return 18;
  if (cachalot_enable_peer_access(0, 0) != CACHALOT_E_INVALID_ARGUMENT) return 19;
  cachalot_free(contiguous, size, 0, stream);

  size_t held = 0;
  if (cachalot_add_segment_callback(on_segment, &held) != CACHALOT_OK || held == 0) return 22;
  if (held != cachalot_memory_reserved(0)) return 23;
  if (cachalot_empty_cache(0) != CACHALOT_OK || held != 0) return 24;
  if (cachalot_remove_segment_callback(on_segment, &held) != CACHALOT_OK) return 25;

  if (cachalot_empty_cache(99) != CACHALOT_E_INVALID_ARGUMENT || cachalot_last_error()[0] == '\0') return 14;
  return 0;
}
