/** @file
 * The part of the C interface that is about tags: memory that sleeps and wakes as a whole, and
 * gives way when other memory runs short. Programs include cachalot/c_api.h, which has the rules of
 * errors, threads and forked children. */
#ifndef CACHALOT_C_TAGS_H_
#define CACHALOT_C_TAGS_H_

#include "cachalot/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Starts a region: until cachalot_end_tagged, allocations of the calling thread belong to the tag.
 * Regions nest, and several threads may be in regions of one tag.
 * `tag` is a name; it is neither NULL nor empty.
 * `device` may be -1: all devices. */
CACHALOT_API int cachalot_begin_tagged(const char* tag, int device);
/** Ends the calling thread's innermost region of the tag. */
CACHALOT_API int cachalot_end_tagged(const char* tag, int device);
/** Places of the content of memory that sleeps. */
enum {
  /** It is lost. */
  CACHALOT_KEEP_NOTHING = 0,
  /** It is in pinned host memory. */
  CACHALOT_KEEP_PINNED = 1,
  /** It is in a file of a folder, without a name: nothing is left when the process ends. */
  CACHALOT_KEEP_FILE = 2
};
/** Puts the tag's memory to sleep: gives it back to the device until cachalot_restore_physical
 * brings memory to the same addresses.
 * Needs CACHALOT_CONF=heap:pages.
 * Allocations stay live and may be freed. They must not be used while they sleep.
 * An allocation from the tag fails while it sleeps.
 * The content is lost, or kept where `keep` says (CACHALOT_KEEP_...) and restored.
 * `folder` exists and has the file of CACHALOT_KEEP_FILE; NULL without that.
 * Does nothing if the tag is asleep.
 * Waits for the device's work.
 * Fails with CACHALOT_E_INVALID_ARGUMENT for a tag that was never begun, for another heap, for a
 * folder in which no file can be made, and while a graph is captured.
 * Fails with CACHALOT_E_OUT_OF_MEMORY if the host has too little memory, or the folder too little
 * room, to save to. That device is then as before; devices of lower numbers are done.
 * After CACHALOT_E_CUDA a part of the memory may be asleep. The saved content is kept, and a
 * further call goes on. */
CACHALOT_API int cachalot_release_physical(const char* tag, int keep, const char* folder,
                                           int device);
/** Wakes the tag: brings memory, and the saved content, to the same addresses.
 * Does nothing if the tag is awake.
 * Fails with CACHALOT_E_INVALID_ARGUMENT as cachalot_release_physical.
 * Fails with CACHALOT_E_OUT_OF_MEMORY if the device has too little memory. That device is then
 * as before; devices of lower numbers are done.
 * After CACHALOT_E_CUDA a part of the memory may be asleep. The saved content is kept, and a
 * further call goes on. */
CACHALOT_API int cachalot_restore_physical(const char* tag, int device);
/** Puts `count` tags to sleep, in their order, as cachalot_release_physical; does nothing if a tag
 * was never begun. After another failure the tags before the one that failed are asleep. */
CACHALOT_API int cachalot_release_tags(const char* const* tags, size_t count, int keep,
                                       const char* folder, int device);
/** Wakes `count` tags, in their order, as cachalot_restore_physical and cachalot_release_tags. */
CACHALOT_API int cachalot_restore_tags(const char* const* tags, size_t count, int device);
/** Copies content that sleeping memory keeps to the host: `size` bytes of live allocations, from
 * `from` on. `*is_kept` is 1 if all of it is kept, else 0, and `to` is then undefined. */
CACHALOT_API int cachalot_read_saved(const void* from, void* to, size_t size, int* is_kept);

/** Makes the tag evictable: its memory gives way, as by cachalot_release_physical, where an
 * allocation or a cachalot_restore_physical would otherwise fail for want of memory, and to
 * cachalot_give_way.
 * It stays while it is held (cachalot_ensure), while a thread is in a region of the tag, and while
 * a graph is captured.
 * The tag with the lowest priority gives way first, of several the tag ensured longest ago.
 * `keep` and `folder` are those of cachalot_release_physical.
 * Needs CACHALOT_CONF=heap:pages. Makes the tag if there is none. */
CACHALOT_API int cachalot_make_evictable(const char* tag, int priority, int keep,
                                         const char* folder, int device);
/** Takes cachalot_make_evictable back. A tag that is asleep stays so. */
CACHALOT_API int cachalot_make_resident(const char* tag, int device);
/** Wakes the tag if it is asleep, and holds it: until cachalot_let_go it does not give way. Holds
 * are counted.
 * Work that uses the memory is to be queued under a hold. It need not be done at cachalot_let_go.
 * `*is_lost` is 1 if the content was lost since the last call, else 0: the caller makes it again.
 * Fails as cachalot_restore_physical; the tag is then not held. */
CACHALOT_API int cachalot_ensure(const char* tag, int device, int* is_lost);
/** Ends a hold of cachalot_ensure. Fails with CACHALOT_E_INVALID_ARGUMENT if there is none. */
CACHALOT_API int cachalot_let_go(const char* tag, int device);
/** Gives at least `size` bytes back to the device, as far as possible: cached memory as by
 * cachalot_trim, then evictable tags.
 * Waits for the device's work if a tag gives way.
 * Returns the bytes given back. Returns 0 on error.
 * A call that succeeds empties cachalot_last_error(). */
CACHALOT_API size_t cachalot_give_way(size_t size, int device);

/** Returns the memory of each tag on each device as JSON: an array of objects with the names of the
 * members of cachalot::TagMemory. Free it with cachalot_string_free. Returns NULL on error. */
CACHALOT_API char* cachalot_tags_json(void);

#ifdef __cplusplus
}
#endif

#endif
