#include "blocks/block_pool.h"

namespace cachalot {

Arena& BlockPool::find_or_add(const KnownStream& stream) {
  if (const auto found = by_stream_.find(stream.key); found != by_stream_.end()) {
    last_ = found->second;
  } else {
    arenas_.reserve(arenas_.size() + 1);
    auto arena = std::make_unique<Arena>(*this, stream);
    by_stream_.emplace(stream.key, arena.get());
    last_ = arena.get();
    arenas_.push_back(std::move(arena));
  }
  return *last_;
}

}  // namespace cachalot
