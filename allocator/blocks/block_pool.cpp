#include "blocks/block_pool.h"

#include <utility>

CACHALOT_BEGIN

Arena& BlockPool::add(const KnownStream& stream) {
  arenas_.reserve(arenas_.size() + 1);
  auto arena = std::make_unique<Arena>(*this, stream);
  by_stream_.emplace(stream.key, arena.get());
  arenas_.push_back(std::move(arena));
  remember(*arenas_.back());
  return *last_;
}

CACHALOT_END
