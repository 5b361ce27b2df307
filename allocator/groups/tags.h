// The tags of memory that can sleep, each the name of a private pool. Thread safety: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "cachalot/pool_id.h"

CACHALOT_BEGIN

class Tags {
 public:
  // Makes the tag, if it does not exist.
  PoolId make(std::string_view tag);
  // Throws InvalidArgument for a tag that was never made.
  PoolId pool_of(std::string_view tag) const;
  std::map<std::string, PoolId> all() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::uint64_t, std::less<>> numbers_;  // from 1 on
};

CACHALOT_END
