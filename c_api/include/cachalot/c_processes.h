/** @file
 * The part of the C interface that is between processes: statistics for others, and a budget that
 * they share. Programs include cachalot/c_api.h, which has the rules of errors, threads and forked
 * children. */
#ifndef CACHALOT_C_PROCESSES_H_
#define CACHALOT_C_PROCESSES_H_

#include "cachalot/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/** @name Statistics for other processes
 * CACHALOT_PUBLISH=1 does the same as cachalot_publish(NULL) without a change of the program, once
 * the allocator is first used. `cachalot top` shows the published statistics;
 * docs/reference/statistics_page.md describes the page.
 * @{ */

/** Publishes the statistics of the allocator on a page in shared memory, until
 * cachalot_stop_publishing or the end of the process. Malloc and free do nothing for it.
 * `directory` is the folder of the page; NULL: the one that CACHALOT_PUBLISH_DIR names, or
 * /dev/shm.
 * Does nothing if they are published already.
 * Fails with CACHALOT_E_INVALID_ARGUMENT if the page cannot be made. */
CACHALOT_API int cachalot_publish(const char* directory);

/** Ends publishing and removes the page. Does nothing if nothing is published. */
CACHALOT_API int cachalot_stop_publishing(void);
/** @} */

/** @name A budget between processes
 * Processes that join the budget of a GPU divide its memory: a member's part is its floor, and of
 * the total less all floors what its share is of all shares. A member that holds more than its part
 * gives memory back within a second, as cachalot_give_way does; other allocated memory is never
 * touched. `cachalot budget` shows and changes it (docs/guides/limits.md).
 * @{ */

/** Joins the budget of `device`, until cachalot_leave_budget or the end of the process.
 * `share` is a number from 0.001 to 1,000,000; 1 is usual.
 * `floor` is the least that the part has, in bytes.
 * `keep_free` are the bytes that are to stay free on the device for programs outside of the budget:
 * while less is free, this process gives memory back; 0: none.
 * `name` is for `cachalot budget`, at most 39 bytes; NULL: the program's name.
 * `path` is the file of the budget, which is made if it is not there; NULL: the GPU's own in the
 * folder that CACHALOT_PUBLISH_DIR names, or in /dev/shm.
 * `tells` is not 0 for a line on stderr when memory begins to be given back.
 * A forked child is not a member.
 * Fails with CACHALOT_E_INVALID_ARGUMENT, and changes nothing, for other values, for a floor above
 * what the other floors leave of the total, for a file that is another user's, another GPU's or not
 * a budget, if the budget has 31 members, and if a budget of the device was joined before. */
CACHALOT_API int cachalot_join_budget(double share, size_t floor, size_t keep_free,
                                      const char* name, const char* path, int tells, int device);

/** Leaves the budget of `device`. Does nothing if none was joined for it. */
CACHALOT_API int cachalot_leave_budget(int device);

/** Returns a budget as JSON: an object with the names of the members of cachalot::BudgetFigures.
 * `path` is its file, for which no allocator is made; NULL: the budget of `device` that was joined,
 * or would be joined without a path.
 * Free the text with cachalot_string_free. Returns NULL on error, as for a file that is not a
 * budget of this user. */
CACHALOT_API char* cachalot_budget_json(const char* path, int device);
/** @} */

#ifdef __cplusplus
}
#endif

#endif /* CACHALOT_C_PROCESSES_H_ */
