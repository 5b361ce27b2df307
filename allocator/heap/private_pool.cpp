#include "heap/private_pool.h"

#include "base/check.h"
#include "base/format.h"

CACHALOT_BEGIN

std::string name_of(const PrivatePool& pool) {
  return pool.tag.empty() ? formatted("pool ({}, {})", pool.id.first, pool.id.second) : formatted("tag '{}'", pool.tag);
}

void require_awake(const PrivatePool* pool, int device, const char* purpose) {
  CACHALOT_REQUIRE(pool == nullptr || !pool->is_asleep,
                   "{} is asleep on device {}: nothing can be {} from it before restore_physical", name_of(*pool),
                   device, purpose);
}

CACHALOT_END
