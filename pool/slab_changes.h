// Growing and trimming: the changes of a pool's slabs.
// Thread safety: the pool's mutex is held. Functions let it go around calls of the allocator, where they say so.
#pragma once

#include <cstddef>

#include "base/locks.h"
#include "cachalot/tensor_pool.h"
#include "pool_books.h"

CACHALOT_BEGIN

bool ever_grows(const TensorPoolOptions& options);

// Returns the slots that the next slab may have; 0: the pool may not grow.
std::size_t next_slab_slots(const PoolBooks& books) CACHALOT_REQUIRES(books.mutex);

// Adds a slab of free slots. Lets the mutex go. Requires: no other thread grows the pool.
// Throws what the allocator throws; nothing has changed then.
void add_slab(PoolBooks& books, std::size_t slots, StreamKey stream) CACHALOT_REQUIRES(books.mutex);

// Returns wholly free slabs to the allocator while more than `keep` slots are free. Returns their bytes. Lets the mutex
// go. Requires: no other thread trims. Throws the first error of the allocator; slabs that it refused stay the pool's.
std::size_t trim_slabs(PoolBooks& books, std::size_t keep) CACHALOT_REQUIRES(books.mutex);

// The same as far as the high-water mark says, if the pool has one. What fails now is left for another time.
void trim_above_high_water(PoolBooks& books) noexcept CACHALOT_REQUIRES(books.mutex);

CACHALOT_END
