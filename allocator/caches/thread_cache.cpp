#include "caches/thread_cache.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <utility>

namespace cachalot {

Counters::Gathered::Figure CacheSums::Sum::gather() {
  const std::int64_t current = current_.load(std::memory_order_relaxed);
  const std::int64_t added = added_.load(std::memory_order_relaxed);
  const std::int64_t base = gathered_.load(std::memory_order_relaxed);
  const std::int64_t highest = std::max(current, highest_.load(std::memory_order_relaxed));
  highest_.store(current, std::memory_order_relaxed);
  gathered_.store(current, std::memory_order_relaxed);
  return {added - std::exchange(gathered_added_, added), current - base, highest - base};
}

// Nobody stays long: no lock of the heap and no call of a driver is waited for in there.
void ThreadCache::wait_until_left() const {
  while (busy_.load(std::memory_order_acquire)) sched_yield();
}

StreamCache* ThreadCache::find(Stream stream) const {
  for (const auto& cache : streams_) {
    if (cache->stream == stream) return cache.get();
  }
  return nullptr;
}

StreamCache& ThreadCache::add(Stream stream, Depot& depot) {
  return *streams_.emplace_back(std::make_unique<StreamCache>(stream, depot, *this));
}

void ThreadCache::set_limit(std::int64_t bytes) {
  limit_ = bytes;
  floor_ = supplied_bytes_.load(std::memory_order_relaxed) - limit_;
}

void ThreadCache::supplied(std::int64_t bytes) {
  supplied_bytes_.store(supplied_bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  floor_ += bytes;
}

void ThreadCache::move_all(StreamCache& cache, std::size_t size_class, BlockList& to) {
  StreamCache::Class& list = cache.classes[size_class];
  for (BlockList* from : {&list.spare, &list.current}) {
    while (from->count != 0) {
      Block& block = from->pop();
      supplied(-as_signed(block.size()));
      to.push(block);
    }
  }
  cache.refills[size_class] = 0;
}

BlockList ThreadCache::evict() {
  BlockList evicted;
  const std::size_t classes = streams_.size() * SizeClass::kCount;
  for (std::size_t looked_at = 0; looked_at < classes && cached_bytes() > limit_ / 4 * 3; ++looked_at) {
    next_victim_ = (next_victim_ + 1) % classes;
    move_all(*streams_[next_victim_ / SizeClass::kCount], next_victim_ % SizeClass::kCount, evicted);
  }
  return evicted;
}

BlockList ThreadCache::empty() {
  BlockList blocks;
  for (const auto& stream : streams_) {
    for (std::size_t i = 0; i < SizeClass::kCount; ++i) move_all(*stream, i, blocks);
  }
  return blocks;
}

std::size_t ThreadCache::cached_blocks() const {
  std::size_t blocks = 0;
  for (const auto& stream : streams_) {
    for (const StreamCache::Class& list : stream->classes) blocks += list.current.count + list.spare.count;
  }
  return blocks;
}

std::string ThreadCache::validate() const {
  std::int64_t bytes = 0;
  for (const auto& stream : streams_) {
    for (std::size_t i = 0; i < SizeClass::kCount; ++i) {
      const StreamCache::Class& list = stream->classes[i];
      for (const BlockList* blocks : {&list.current, &list.spare}) {
        if (std::string broken = cachalot::validate(*blocks, i, stream->stream); !broken.empty()) return broken;
      }
      if (list.current.count > SizeClass::batch(i)) return "a cached list holds more than a batch";
      if (list.spare.count != 0 && list.spare.count != SizeClass::batch(i)) return "a spare list is no batch";
      bytes += as_signed((list.current.count + list.spare.count) * SizeClass::bytes(i));
    }
  }
  return bytes == cached_bytes() ? "" : fmt::format("a cache counts {} bytes and holds {}", cached_bytes(), bytes);
}

std::size_t ThreadCache::metadata_bytes() const { return sizeof(*this) + streams_.size() * sizeof(StreamCache); }

}  // namespace cachalot
