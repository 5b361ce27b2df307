#include "caches/thread_cache.h"

#include <algorithm>
#include <numeric>

#include "base/format.h"
#include "device/addresses.h"

CACHALOT_BEGIN

StreamCache* ThreadCache::find(StreamKey stream) const {
  for (const auto& cache : streams_) {
    if (cache->stream == stream) return cache.get();
  }
  return nullptr;
}

StreamCache& ThreadCache::add(StreamKey stream, Depot& depot) {
  return *streams_.emplace_back(std::make_unique<StreamCache>(stream, depot, *this));
}

void ThreadCache::end(StreamCache& cache) {
  cache.depot = nullptr;
  has_ended_streams_ = true;
}

void ThreadCache::set_limit(std::int64_t bytes) {
  limit_ = bytes;
  floor_ = supplied_bytes_.load(std::memory_order_relaxed) - limit_;
}

void ThreadCache::supplied(std::int64_t bytes) {
  supplied_bytes_.store(supplied_bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
  floor_ += bytes;
}

void StreamCache::drop_batch(std::size_t size_class) {
  const std::uint32_t dropped = SizeClass::batch(size_class);
  std::copy_n(bottom(size_class) + dropped, count(size_class) - dropped, bottom(size_class));
  counts[size_class] = static_cast<std::uint8_t>(count(size_class) - dropped);
}

std::size_t ThreadCache::cached_blocks() const {
  std::size_t blocks = 0;
  for (const auto& stream : streams_) {
    blocks = std::accumulate(stream->counts.begin(), stream->counts.end(), blocks + (stream->front != nullptr ? 1 : 0));
  }
  return blocks;
}

std::string ThreadCache::validate() const {
  std::int64_t bytes = 0;
  for (const auto& stream : streams_) {
    if (Block* front = stream->front) {
      const std::size_t size_class = SizeClass::of(front->size());
      if (std::string broken = cachalot::validate({&front, 1}, size_class, stream->stream); !broken.empty())
        return broken;
      if (as_address(stream->front_address) != front->address) return "a front's address is not its own";
      bytes += as_signed(front->size());
    }
    for (std::size_t i = 0; i < SizeClass::kCount; ++i) {
      if (stream->count(i) > SizeClass::most(i)) return "a cache holds more than two batches of a class";
      if (std::string broken = cachalot::validate(stream->blocks(i), i, stream->stream); !broken.empty()) return broken;
      bytes += as_signed(stream->count(i) * SizeClass::bytes(i));
    }
  }
  return bytes == cached_bytes() ? "" : formatted("a cache counts {} bytes and holds {}", cached_bytes(), bytes);
}

std::size_t ThreadCache::metadata_bytes() const { return sizeof(*this) + streams_.size() * sizeof(StreamCache); }

CACHALOT_END
