/** @file
 * The publishing of statistics for other processes, in C.
 *
 * The environment variable CACHALOT_PUBLISH=1 does the same as cachalot_publish(NULL) without a
 * change of the program, once the allocator is first used. `cachalot top` shows the published
 * statistics; docs/reference/statistics_page.md describes the page.
 *
 * These functions are part of libcachalot.so; cachalot/c_api.h says what holds for all of them. */
#ifndef CACHALOT_C_PUBLISH_H_
#define CACHALOT_C_PUBLISH_H_

#include "cachalot/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Publishes the statistics of the allocator on a page in shared memory, until
 * cachalot_stop_publishing or the end of the process. Malloc and free do nothing for it.
 * `directory` is the folder of the page; NULL: the one that CACHALOT_PUBLISH_DIR names, or
 * /dev/shm.
 * Does nothing if they are published already.
 * Fails with CACHALOT_E_INVALID_ARGUMENT if the page cannot be made. */
CACHALOT_API int cachalot_publish(const char* directory);

/** Ends publishing and removes the page. Does nothing if nothing is published. */
CACHALOT_API int cachalot_stop_publishing(void);

#ifdef __cplusplus
}
#endif

#endif /* CACHALOT_C_PUBLISH_H_ */
