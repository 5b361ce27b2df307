#include "groups/tags.h"

#include "base/check.h"

CACHALOT_BEGIN

PoolId Tags::make(std::string_view tag) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t number = numbers_.try_emplace(std::string(tag), numbers_.size() + 1).first->second;
  return {number, number};
}

PoolId Tags::pool_of(std::string_view tag) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = numbers_.find(tag);
  CACHALOT_REQUIRE(found != numbers_.end(), "no memory was ever tagged '{}'", tag);
  return {found->second, found->second};
}

std::map<std::string, PoolId> Tags::all() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::map<std::string, PoolId> pools;
  for (const auto& [tag, number] : numbers_) pools.emplace(tag, PoolId{number, number});
  return pools;
}

CACHALOT_END
